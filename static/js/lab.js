// @ts-check
/** The placement lab: the swarm at work, its curves, and who lies where. */
import { figure } from "./amounts.js";
import { chartCard } from "./charts.js";
import { corners, enlarged, Film, ranks } from "./film.js";

const FRAME_MS = 100;
const ASK_MS = 300;

/** @type {any} */
const page = JSON.parse(document.getElementById("live-lab")?.textContent ?? "{}");
const canvas = /** @type {HTMLCanvasElement} */ (document.getElementById("swarm"));
const empty = /** @type {HTMLElement} */ (document.getElementById("swarm-empty"));
const player = /** @type {HTMLElement} */ (document.getElementById("player"));
const moment = /** @type {HTMLInputElement} */ (document.getElementById("moment"));
const words = /** @type {HTMLElement} */ (document.getElementById("moment-words"));
const play = /** @type {HTMLButtonElement} */ (document.getElementById("play"));
const badge = /** @type {HTMLElement} */ (document.getElementById("run-state"));
const isCalm = matchMedia("(prefers-reduced-motion: reduce)");

const film = new Film();
let isOver = false;
let isPlaying = true;
/** @type {{placer: string, cost: number, left_out: number, hosts_active: number}[]} */
let rows = [];
/** @type {number | null} */
let bound = null;
/** @type {import("./film.js").Frame | null} */
let drawn = null;
let drawnAt = 0;
/** @type {import("./film.js").Frame | null} */
let before = null;

// --- numbers and curves ----------------------------------------------------------

/** @param {string} name @param {string} text */
function say(name, text) {
  const element = document.querySelector(`[data-number="${name}"]`);
  if (element) element.textContent = text;
}

const isByHosts = page.objective === "hosts";
const place = /** @type {HTMLElement} */ (document.getElementById("lab-charts"));

/** The rules of thumb as lines to get below: the best of them, and the bound. */
function limits() {
  const whole = rows.filter((row) => row.placer !== "swarm" && !row.left_out);
  const best = whole.sort((a, b) => a.cost - b.cost)[0];
  const found = best ? [{ value: best.cost, name: `best rule of thumb: ${best.placer}` }] : [];
  return bound && isByHosts ? [...found, { value: bound, name: "proven bound" }] : found;
}

const charts = [
  chartCard(place, isByHosts ? "Machines in use" : "Cost", () => {
    const { x, best, mean } = film.curves();
    return {
      x: "number", xTitle: "seconds", stepped: false, limits: limits(),
      traces: [{ name: "best", x, y: best }, { name: "particles, on average and finer", x, y: mean }],
    };
  }, () => {
    const { best, mean } = film.curves();
    return [["best", figure(best.at(-1))], ["particles, on average and finer", figure(mean.at(-1))]];
  }),
  chartCard(place, page.objective === "gpu" ? "Requests left out" : "Diversity", () => {
    const { x, diversity, leftOut } = film.curves();
    const isGpu = page.objective === "gpu";
    return { x: "number", xTitle: "seconds", fromZero: true, traces: [{ name: isGpu ? "left out" : "diversity", x, y: isGpu ? leftOut : diversity }] };
  }, () => {
    const { diversity, leftOut } = film.curves();
    return [["", figure((page.objective === "gpu" ? leftOut : diversity).at(-1))]];
  }),
];

// --- the swarm ---------------------------------------------------------------------

/** @param {string} name */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** The plane of all frames that are here; found anew only when there are more. */
function planeNow() {
  if (planeOf !== film.frames.length) {
    planeOf = film.frames.length;
    plane = corners(film.frames);
  }
  return plane;
}
let planeOf = -1;
let plane = corners([]);

function paint() {
  const context = canvas.getContext("2d");
  if (!context || !drawn) return;
  const ratio = Math.min(2, devicePixelRatio || 1);
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  planeNow();
  /** @param {[number, number]} at @returns {[number, number]} */
  const put = ([x, y]) => [
    enlarged(x, plane.left, plane.right) * width,
    height - enlarged(y, plane.bottom, plane.top) * height,
  ];
  const since = isCalm.matches ? 1 : Math.min(1, (performance.now() - drawnAt) / FRAME_MS);
  const places = ranks(drawn.costs);
  drawn.positions.forEach((at, index) => {
    const from = before?.positions[index] ?? at;
    const now = put([from[0] + (at[0] - from[0]) * since, from[1] + (at[1] - from[1]) * since]);
    const [tailX, tailY] = put(from);
    context.globalAlpha = 0.25;
    context.strokeStyle = colour("--series-1");
    context.beginPath();
    context.moveTo(tailX, tailY);
    context.lineTo(now[0], now[1]);
    context.stroke();
    const isBest = places[index] === 0;
    context.globalAlpha = 1 - 0.7 * places[index];
    context.fillStyle = colour(isBest ? "--series-2" : "--series-1");
    context.beginPath();
    context.arc(now[0], now[1], isBest ? 8 : 5.5, 0, 2 * Math.PI);
    context.fill();
  });
  context.globalAlpha = 1;
  if (since < 1) requestAnimationFrame(paint);
}

/** @param {import("./film.js").Frame} frame */
function show(frame) {
  before = drawn;
  drawn = frame;
  drawnAt = performance.now();
  empty.hidden = true;
  canvas.dataset.frame = String(film.shown);
  const cost = frame.best_cost;
  say("best", page.objective === "gpu" ? `${frame.left_out} left out` : figure(cost));
  say("best-note", bound && isByHosts ? `machines; proven: at least ${bound}` : isByHosts ? "machines" : "");
  say("left-out", String(frame.left_out));
  say("diversity", figure(frame.diversity));
  say("iteration", frame.iteration.toLocaleString("en"));
  say("seconds", `${frame.seconds.toFixed(1)} s of ${page.seconds} s`);
  moment.max = String(film.frames.length - 1);
  moment.value = String(film.shown);
  words.textContent = `${frame.seconds.toFixed(1)} s`;
  moment.setAttribute("aria-valuetext", words.textContent);
  for (const chart of charts) chart.draw();
  requestAnimationFrame(paint);
}

function tick() {
  if (!isPlaying || document.hidden) return;
  const frame = film.advance();
  if (frame) show(frame);
  else if (isOver) setPlaying(false);
}

/** @param {boolean} playing */
function setPlaying(playing) {
  isPlaying = playing;
  play.setAttribute("aria-label", playing ? "Pause" : "Play");
  play.querySelector("use")?.setAttribute("href", (play.querySelector("use")?.getAttribute("href") ?? "").replace(/#.*/, playing ? "#pause" : "#play"));
}

play.addEventListener("click", () => {
  if (!isPlaying && film.shown >= film.frames.length - 1) film.shown = -1;
  setPlaying(!isPlaying);
});
moment.addEventListener("input", () => {
  setPlaying(false);
  const frame = film.seek(Number(moment.value));
  if (frame) show(frame);
});
document.addEventListener("themechange", () => requestAnimationFrame(paint));
addEventListener("resize", () => requestAnimationFrame(paint));

// --- asking ---------------------------------------------------------------------------

async function ask() {
  try {
    const answer = await fetch(`${page.frames}?first=${film.next}`, { headers: { Accept: "application/json" }, credentials: "same-origin" });
    if (answer.status === 404) return;
    if (answer.ok) take(await answer.json());
  } catch { /* the connection is lost; the next question may do better */ }
  if (!isOver) setTimeout(ask, document.hidden ? 2000 : ASK_MS);
}

/** @param {any} answer */
function take(answer) {
  film.take(answer.first, answer.frames);
  const isNew = answer.rows.length !== rows.length;
  rows = answer.rows;
  bound = answer.bound;
  if (!film.frames.length && answer.progress_text) empty.textContent = answer.progress_text;
  if (badge.dataset.state !== answer.state) {
    badge.dataset.state = answer.state;
    badge.className = `badge badge--${answer.state}`;
    badge.textContent = answer.state;
  }
  isOver = !["waiting", "running"].includes(answer.state);
  player.hidden = !(isOver && film.frames.length > 1);
  if (isOver) document.getElementById("cancel-run")?.remove();
  // The tables and the picture come as the server writes them.
  // @ts-ignore htmx is a classic script
  if ((isNew || isOver) && !page.is_over) globalThis.htmx?.ajax("GET", location.pathname, { target: "#found", swap: "innerHTML" });
}

if (page.frames) {
  if (page.is_over) film.shown = -1;
  setInterval(tick, FRAME_MS);
  ask();
}

// --- the packing -----------------------------------------------------------------------

/** Say who a block or a machine is, where it can be read. @param {Event} event */
function tell(event) {
  const target = /** @type {Element} */ (event.target);
  const named = target.closest("#packing [data-text]");
  const note = document.getElementById("packing-note");
  if (named instanceof Element && note) note.textContent = named.getAttribute("data-text");
}
document.addEventListener("pointerover", tell);
document.addEventListener("focusin", tell);
