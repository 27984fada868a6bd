// @ts-check
/** Hosts and GPUs, live: gauges, small charts, and on a host's own page larger ones. */
import { bytes, mib, percent } from "./amounts.js";
import { Chart, chartCard } from "./charts.js";
import { LiveSocket, showState, socketUrl } from "./live.js";
import { SampleSeries } from "./series.js";

const WINDOW_MS = 10 * 60 * 1000;
const LIVE_FOR_MS = 10_000;

/** @type {Map<string, {series: SampleSeries, show: () => void}>} */
const subjects = new Map();

/**
 * @param {Element} card
 * @param {string} name
 * @param {number | null} pct
 * @param {string} words
 */
function gauge(card, name, pct, words) {
  const value = card.querySelector(`[data-value="${name}"]`);
  if (value) value.textContent = words;
  const bar = card.querySelector(`[data-bar="${name}"]`);
  if (!(bar instanceof HTMLProgressElement)) return;
  bar.classList.toggle("is-unknown", pct === null);
  bar.classList.toggle("is-high", pct !== null && pct > 85);
  bar.value = pct ?? 0;
}

/** A reading that is old is unknown. @param {SampleSeries} series @param {string} name */
function present(series, name) {
  const at = series.times.at(-1) ?? 0;
  return Date.now() - at > LIVE_FOR_MS ? null : series.latest(name);
}

/** @returns {[number, number]} */
function lastMinutes() {
  return [Date.now() - WINDOW_MS, Date.now()];
}

/** @param {HTMLElement} card */
function wireHost(card) {
  const name = card.dataset.host ?? "";
  const series = new SampleSeries(3600);
  const share = () => {
    const used = series.columns("memory_used_mib");
    const total = series.latest("memory_total_mib") || 1;
    return { x: used.x, y: used.y.map((value) => (value === null ? null : (100 * value) / total)) };
  };
  const plot = /** @type {HTMLElement} */ (card.querySelector('[data-chart="host"]'));
  const small = new Chart(plot, () => ({
    isSmall: true, max: 104, unit: " %", range: lastMinutes(),
    traces: [{ name: "CPU", fill: true, ...series.columns("cpu_pct") }, { name: "memory", ...share() }],
  }));
  const large = card.dataset.detailed !== undefined ? hostCharts(name, series) : [];
  const show = () => {
    const cpu = present(series, "cpu_pct");
    const used = present(series, "memory_used_mib");
    const total = present(series, "memory_total_mib");
    gauge(card, "cpu", cpu, percent(cpu));
    gauge(card, "memory", used !== null && total ? (100 * used) / total : null, used === null ? "unknown" : `${mib(used)} of ${mib(total)}`);
    small.draw();
    for (const chart of large) chart.draw();
  };
  subjects.set(`host:${name}`, { series, show });
  load(card.dataset.samples ?? "", `host:${name}`);
  for (const gpu of card.querySelectorAll("[data-gpu]")) wireGpu(/** @type {HTMLElement} */ (gpu));
}

/** @param {HTMLElement} card */
function wireGpu(card) {
  const uuid = card.dataset.gpu ?? "";
  const series = new SampleSeries(3600);
  const bar = /** @type {HTMLElement} */ (card.querySelector('[data-bar="gpu-memory"]'));
  const total = Number(bar.dataset.total);
  const place = document.getElementById("host-charts");
  const charts = place ? gpuCharts(place, card.querySelector(".gpu__name")?.textContent ?? "GPU", series, total).slice(0, card.dataset.slice === undefined ? 4 : 1).map((make) => make()) : [];
  const show = () => {
    const busy = present(series, "utilization_pct");
    const used = present(series, "memory_used_mib");
    gauge(card, "gpu", busy, said(series, "utilization_pct", percent));
    gauge(card, "gpu-memory", used === null ? null : (100 * used) / total, `${said(series, "memory_used_mib", mib)} of ${mib(total)}`);
    const more = card.querySelector('[data-value="gpu-more"]');
    const heat = present(series, "temperature_c");
    const power = present(series, "power_w");
    if (more && heat !== null) more.textContent = [`${Math.round(heat)} °C`, power === null ? "" : `${Math.round(power)} W`].filter(Boolean).join(", ");
    for (const chart of charts) chart.draw();
  };
  subjects.set(`gpu:${uuid}`, { series, show });
  load(card.dataset.samples ?? "", `gpu:${uuid}`);
}

/**
 * A value in words, or why there is none.
 * @param {SampleSeries} series
 * @param {string} name
 * @param {(value: number) => string} words
 */
function said(series, name, words) {
  const value = present(series, name);
  return value === null ? series.why(name) || "unknown" : words(value);
}

/**
 * @param {HTMLElement} place
 * @param {string} name
 * @param {SampleSeries} series
 * @param {number} total MiB
 */
function gpuCharts(place, name, series, total) {
  const whole = (/** @type {string} */ unit) => (/** @type {number} */ value) => `${Math.round(value)} ${unit}`;
  const limit = () => series.latest("power_limit_w");
  // Made one by one by the caller: a slice has no power, heat or clock of its own.
  return [
    () => chartCard(place, `${name} (%)`, () => ({
      max: 104, unit: " %",
      traces: [
        { name: "busy", ...series.columns("utilization_pct") },
        { name: "memory", ...series.columns("memory_used_mib", (value) => (100 * value) / total) },
        { name: "memory at work", ...series.columns("memory_utilization_pct") },
      ],
    }), () => [["busy", said(series, "utilization_pct", percent)], ["memory", said(series, "memory_used_mib", mib)], ["memory at work", said(series, "memory_utilization_pct", percent)]]),
    () => chartCard(place, `${name}: power (W)`, () => ({
      unit: " W", traces: [{ name: "power", fill: true, ...series.columns("power_w") }],
      limit: limit() === null ? null : { value: /** @type {number} */ (limit()), name: `limit ${limit()} W` },
    }), () => [["", said(series, "power_w", whole("W"))]]),
    () => chartCard(place, `${name}: heat (°C)`, () => ({
      unit: " °C", traces: [{ name: "GPU", ...series.columns("temperature_c") }, { name: "fan %", ...series.columns("fan_pct") }],
    }), () => [["GPU", said(series, "temperature_c", whole("°C"))], ["fan", said(series, "fan_pct", percent)]]),
    () => chartCard(place, `${name}: clock (MHz)`, () => ({
      unit: " MHz", traces: [{ name: "clock", ...series.columns("clock_mhz") }],
    }), () => [["", said(series, "clock_mhz", whole("MHz"))]]),
  ];
}

/** @param {string} name @param {SampleSeries} series */
function hostCharts(name, series) {
  const place = document.getElementById("host-charts");
  if (!place || place.dataset.chartsOf !== name) return [];
  const scale = (/** @type {number} */ value) => value / 1e6;
  const rate = (/** @type {string} */ field) => {
    const value = present(series, field);
    return value === null ? "unknown" : `${bytes(value)}/s`;
  };
  return [
    chartCard(place, "CPU (%)", () => ({ max: 104, unit: " %", traces: [{ name: "CPU", fill: true, ...series.columns("cpu_pct") }] }),
      () => [["", percent(present(series, "cpu_pct"))]]),
    chartCard(place, "Memory (GiB)", () => ({
      unit: " GiB", max: (series.latest("memory_total_mib") ?? 0) / 1024 || null,
      traces: [{ name: "used", fill: true, ...series.columns("memory_used_mib", (value) => value / 1024) }],
    }), () => [["", mib(present(series, "memory_used_mib"))]]),
    chartCard(place, "Disk (MB/s)", () => ({
      unit: " MB/s", traces: [{ name: "read", ...series.columns("read_bytes_s", scale) }, { name: "write", ...series.columns("write_bytes_s", scale) }],
    }), () => [["read", rate("read_bytes_s")], ["write", rate("write_bytes_s")]]),
    chartCard(place, "Network (MB/s)", () => ({
      unit: " MB/s", traces: [{ name: "in", ...series.columns("receive_bytes_s", scale) }, { name: "out", ...series.columns("transmit_bytes_s", scale) }],
    }), () => [["in", rate("receive_bytes_s")], ["out", rate("transmit_bytes_s")]]),
  ];
}

/** @param {string} url @param {string} subject */
async function load(url, subject) {
  const entry = subjects.get(subject);
  if (!entry || !url) return;
  const isDetailed = document.getElementById("host-charts");
  const since = new Date(Date.now() - (isDetailed ? 3_500_000 : WINDOW_MS)).toISOString();
  try {
    const answer = await fetch(`${url}?since=${encodeURIComponent(since)}`, { credentials: "same-origin" });
    if (!answer.ok) return;
    const { samples, resolution_s: resolution } = await answer.json();
    entry.series.widestMs = Math.max(3500, resolution * 3500);
    for (const [at, values] of samples) entry.series.add(at, values);
  } catch { return; /* asked again at the next reconnection */ }
  entry.show();
}

for (const card of document.querySelectorAll("[data-host]")) wireHost(/** @type {HTMLElement} */ (card));
setInterval(() => { for (const { show } of subjects.values()) show(); }, 5000);

let wasLost = false;
const live = new LiveSocket(socketUrl("/ws/cluster/"), {
  onMessage(message) {
    if (message.type !== "samples") return;
    const entry = subjects.get(message.subject);
    if (entry?.series.add(message.at_ms, message.values)) entry.show();
  },
  onState(state, code) {
    showState(state, code);
    if (state === "waiting") wasLost = true;
    if (state !== "live" || !wasLost) return;
    wasLost = false;
    for (const card of document.querySelectorAll("[data-samples]")) {
      const own = /** @type {HTMLElement} */ (card).dataset;
      load(own.samples ?? "", own.host ? `host:${own.host}` : `gpu:${own.gpu}`);
    }
  },
});
live.open();
