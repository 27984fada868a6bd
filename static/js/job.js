// @ts-check
/** A job's page: one socket feeds the log, the curves and the charts; REST fills what was missed. */
import { bytes, figure, mib, percent } from "./amounts.js";
import { chartCard } from "./charts.js";
import { LiveSocket, showState, socketUrl } from "./live.js";
import { LogView } from "./log_view.js";
import { chartOf, MetricSeries, SampleSeries } from "./series.js";

/** @type {any} */
const page = JSON.parse(document.getElementById("live-job")?.textContent ?? "{}");
const curves = /** @type {HTMLElement} */ (document.getElementById("curves"));
const resources = /** @type {HTMLElement} */ (document.getElementById("resources"));
const attemptQuery = page.attempt ? { attempt: page.attempt } : {};

/**
 * @param {string} url
 * @param {Record<string, any>} query
 */
async function ask(url, query = {}) {
  const words = new URLSearchParams(Object.entries(query).map(([name, value]) => [name, String(value)]));
  const answer = await fetch(`${url}?${words}`, { headers: { Accept: "application/json" }, credentials: "same-origin" });
  if (!answer.ok) throw new Error(`${url} answered ${answer.status}`);
  return answer.json();
}

// --- log -----------------------------------------------------------------------

let rank = 0;
const log = new LogView({
  root: /** @type {HTMLElement} */ (document.getElementById("log")),
  fetchPage: (first, limit) => ask(page.urls.logs, { ...attemptQuery, rank, first, limit: Math.min(5000, Math.max(limit, 500)) }),
  search: async (text) => (await ask(page.urls.search, { ...attemptQuery, rank, text })).lines,
});

async function loadLog() {
  try {
    const answer = await ask(page.urls.logs, { ...attemptQuery, rank, first: -400, limit: 400 });
    log.backfill.take(answer);
    log.draw();
    log.toHash();
  } catch { /* the socket's first message tries again */ }
}

document.getElementById("log-rank")?.addEventListener("change", (event) => {
  rank = Number(/** @type {HTMLSelectElement} */ (event.target).value);
  log.store.blocks.clear();
  log.store.last = 0;
  for (const element of log.shown.values()) element.remove();
  log.shown.clear();
  log.setFollow(true);
  loadLog();
});

// --- metrics -----------------------------------------------------------------------

/** @type {Map<string, MetricSeries>} by rank and name */
const metrics = new Map();
/** @type {Map<string, {chart: import("./charts.js").Chart, keys: Set<string>}>} */
const metricCharts = new Map();
const severalRanks = page.replicas.length > 1;

/** @param {string} key */
function labelOf(key) {
  const [own, ...name] = key.split(" ");
  return severalRanks ? `${name.join(" ")} (rank ${own})` : name.join(" ");
}

/** @param {string[]} keys @returns {[string, string][]} */
function latestMetrics(keys) {
  return keys.map((own) => [keys.length === 1 && !severalRanks ? "" : labelOf(own), figure(metrics.get(own)?.latest())]);
}

/** @param {{rank: number, name: string, step: number, value: number | null}} point */
function addMetric(point) {
  const key = `${point.rank} ${point.name}`;
  let series = metrics.get(key);
  if (!series) metrics.set(key, (series = new MetricSeries()));
  series.add(point.step, point.value);
  const title = chartOf(point.name);
  let entry = metricCharts.get(title);
  if (!entry) {
    const keys = new Set([key]);
    const sorted = () => [...keys].sort();
    const chart = chartCard(curves, title, () => ({
      x: "step",
      traces: sorted().map((own) => ({ name: labelOf(own), ...(metrics.get(own) ?? new MetricSeries()).columns() })),
    }), () => latestMetrics(sorted()));
    // What comes with every batch stands behind what comes with every epoch.
    if (title.startsWith("batch_")) chart.element.closest("figure")?.classList.add("chart--later");
    entry = { chart, keys };
    metricCharts.set(title, entry);
  }
  entry.keys.add(key);
  entry.chart.draw();
  const hint = document.getElementById("no-curves");
  if (hint) hint.hidden = true;
}

async function loadMetrics() {
  try {
    const { series } = await ask(page.urls.metrics, attemptQuery);
    for (const one of series) {
      for (const [step, value] of one.points) addMetric({ rank: one.rank, name: one.name, step, value });
    }
  } catch { /* asked again at the next reconnection */ }
  const hint = document.getElementById("no-curves");
  if (hint) hint.hidden = metrics.size > 0;
}

// --- what the containers and GPUs use ----------------------------------------------

/** @type {Map<string, SampleSeries>} */
const samples = new Map();
/** @type {{chart: import("./charts.js").Chart, subjects: () => string[], names: string[]}[]} */
let resourceCharts = [];

/** @param {string} subject */
function seriesOf(subject) {
  let found = samples.get(subject);
  if (!found) samples.set(subject, (found = new SampleSeries()));
  return found;
}

/**
 * @param {string[]} names
 * @param {(name: string) => string} label
 * @param {(value: number) => number} [scale]
 */
function replicaTraces(names, label, scale) {
  return page.replicas.flatMap((/** @type {any} */ replica) => names.map((name) => ({
    name: severalRanks ? `${label(name)} ${replica.rank}` : label(name),
    fill: names.length === 1 && !severalRanks,
    ...seriesOf(`replica:${replica.id}`).columns(name, scale),
  })));
}

/** @param {string} name */
function latestOf(name) {
  const first = page.replicas[0];
  return first ? seriesOf(`replica:${first.id}`).latest(name) : null;
}

/** The containers of the job, as subjects of samples. */
function containers() {
  return page.replicas.map((/** @type {any} */ replica) => `replica:${replica.id}`);
}

/**
 * @param {string} title
 * @param {string[]} names
 * @param {() => any} picture
 * @param {() => [string, string][]} latest
 */
function resourceCard(title, names, picture, latest, subjects = containers) {
  resourceCharts.push({ chart: chartCard(resources, title, picture, latest), subjects, names });
}

function buildResourceCharts() {
  if (!page.replicas.length || resourceCharts.length) return;
  resourceCard("CPU (% of a core)", ["cpu_pct"], () => ({
    traces: replicaTraces(["cpu_pct"], () => "CPU"), unit: " %",
    limit: { value: page.cpu_limit_pct, name: `${page.cpu_limit_pct / 100} core${page.cpu_limit_pct === 100 ? "" : "s"}` },
  }), () => [["", percent(latestOf("cpu_pct"))]]);
  resourceCard("Memory (MiB)", ["memory_mib"], () => ({
    traces: replicaTraces(["memory_mib"], () => "memory"), unit: " MiB",
    limit: { value: page.memory_limit_mib, name: `limit ${mib(page.memory_limit_mib)}` },
  }), () => [["", mib(latestOf("memory_mib"))]]);
  resourceCard("Disk (MB/s)", ["read_bytes_s", "write_bytes_s"], () => ({
    traces: replicaTraces(["read_bytes_s", "write_bytes_s"], (name) => (name.startsWith("read") ? "read" : "write"), (value) => value / 1e6), unit: " MB/s",
  }), () => [["read", rate("read_bytes_s")], ["write", rate("write_bytes_s")]]);
  resourceCard("Network (MB/s)", ["receive_bytes_s", "transmit_bytes_s"], () => ({
    traces: replicaTraces(["receive_bytes_s", "transmit_bytes_s"], (name) => (name.startsWith("rec") ? "in" : "out"), (value) => value / 1e6), unit: " MB/s",
  }), () => [["in", rate("receive_bytes_s")], ["out", rate("transmit_bytes_s")]]);
  page.gpus.forEach((/** @type {any} */ gpu, /** @type {number} */ index) => {
    const subjects = () => [`gpu:${gpu.uuid}`];
    const series = () => seriesOf(`gpu:${gpu.uuid}`);
    const total = gpu.memory_total_mib;
    resourceCard(`GPU ${index} (%)`, ["utilization_pct", "memory_used_mib"], () => ({
      traces: [
        { name: "busy", ...series().columns("utilization_pct") },
        { name: "memory", ...series().columns("memory_used_mib", (value) => (100 * value) / total) },
      ],
      unit: " %", max: 104,
    }), () => [["busy", series().why("utilization_pct") || percent(series().latest("utilization_pct"))], ["memory", `${mib(series().latest("memory_used_mib"))} of ${mib(total)}`]], subjects);
  });
  // A shared GPU's own figures say nothing of this job: these are its part of them.
  resourceCard("Own share of GPUs (%)", ["gpu_pct"], () => ({
    traces: replicaTraces(["gpu_pct"], () => "share"), unit: " %",
  }), () => [["", percent(latestOf("gpu_pct"))]]);
  resourceCard("Own GPU memory (MiB)", ["gpu_memory_mib"], () => ({
    traces: replicaTraces(["gpu_memory_mib"], () => "GPU memory"), unit: " MiB",
  }), () => [["", mib(latestOf("gpu_memory_mib"))]]);
}

/** @param {string} name */
function rate(name) {
  const value = latestOf(name);
  return value === null ? "unknown" : `${bytes(value)}/s`;
}

function drawResources() {
  buildResourceCharts();
  for (const { chart, subjects, names } of resourceCharts) {
    // What this kind of host cannot measure at all has no chart, rather than an empty one.
    const isMeasured = subjects().some((subject) => names.some((name) => seriesOf(subject).has(name)));
    const card = chart.element.closest("figure");
    if (card) card.hidden = !isMeasured;
    chart.draw();
  }
}

async function loadSamples() {
  if (!page.replicas.length) return;
  try {
    const { series } = await ask(page.urls.samples, attemptQuery);
    for (const one of series) {
      const own = seriesOf(one.subject);
      own.widestMs = Math.max(own.widestMs, one.resolution_s * 3500);
      for (const [at, values] of one.samples) own.add(at, values);
    }
    for (const gpu of page.gpus) {
      const one = await ask(gpu.samples);
      for (const [at, values] of one.samples) seriesOf(`gpu:${gpu.uuid}`).add(at, values);
    }
  } catch { /* asked again at the next reconnection */ }
  drawResources();
}

// --- the socket ----------------------------------------------------------------------

let status = document.getElementById("state")?.dataset.status ?? "";

/** @param {any} message */
function take(message) {
  switch (message.type) {
    case "snapshot":
      for (const stream of message.streams) noteReplica(stream);
      changed(message);
      break;
    case "status":
      changed(message);
      break;
    case "log":
      noteReplica({ replica: message.replica, rank: message.rank });
      if (isShown(message.replica) && message.rank === rank) log.add(message.first, message.lines);
      break;
    case "metrics":
      if (page.is_latest) message.points.forEach(addMetric);
      break;
    case "samples":
      if (seriesOf(message.subject).add(message.at_ms, message.values)) drawResources();
      break;
  }
}

/** @param {string} replica */
function isShown(replica) {
  return page.replicas.some((/** @type {any} */ one) => one.id === replica);
}

/**
 * Learn of a container. One more of a rank that is shown already is another attempt's: late words
 * of an earlier one, or a new one, of which the job's state tells.
 *
 * @param {any} stream
 */
function noteReplica(stream) {
  if (!page.is_latest) return;
  if (!isShown(stream.replica)) {
    if (page.replicas.some((/** @type {any} */ one) => one.rank === stream.rank)) return;
    page.replicas.push({ id: stream.replica, rank: stream.rank, host: stream.host ?? "" });
    loadSamples();
  }
  if (stream.rank === rank && stream.next_line) log.reach(stream.next_line, stream.is_complete);
}

/** @param {any} message */
function changed(message) {
  const signature = JSON.stringify([message.status, message.pending, message.reason, message.attempt]);
  if (signature === status) return;
  const isFirst = status === message.status;
  status = signature;
  if (page.is_latest && needsAnotherPage(message, isFirst)) {
    location.reload();
    return;
  }
  if (message.is_terminal) loadMetrics();
  if (!isFirst) document.body.dispatchEvent(new CustomEvent("job-changed"));
}

/**
 * Whether the job has come to what this page cannot show: another attempt, or GPUs it did not
 * have when the page was made.
 *
 * @param {any} message
 * @param {boolean} isFirst
 */
function needsAnotherPage(message, isFirst) {
  const isNewAttempt = page.attempt !== null && message.attempt > page.attempt;
  const hasNewGpus = page.gpu_count > 0 && !page.gpus.length && message.status === "running" && !isFirst;
  if (page.attempt === null && message.attempt) page.attempt = message.attempt;
  return isNewAttempt || hasNewGpus;
}

let wasLost = false;
let linkState = /** @type {any} */ ("connecting");
const live = new LiveSocket(socketUrl(page.urls.socket), {
  onMessage: take,
  onState(state, code) {
    linkState = state;
    showState(state, code);
    if (state === "waiting") wasLost = true;
    if (state === "live" && wasLost) {
      wasLost = false;
      loadLog();
      loadMetrics();
      loadSamples();
    }
  },
});
document.body.addEventListener("htmx:afterSwap", () => showState(linkState));

if (page.gpus.length && !page.is_terminal) {
  const wanted = new Set(page.gpus.map((/** @type {any} */ gpu) => `gpu:${gpu.uuid}`));
  new LiveSocket(socketUrl(page.urls.cluster_socket), {
    onMessage(message) { if (message.type === "samples" && wanted.has(message.subject)) take(message); },
  }).open();
}

document.addEventListener("tabshown", () => log.draw());
await Promise.all([loadLog(), loadMetrics(), loadSamples()]);
live.open();
