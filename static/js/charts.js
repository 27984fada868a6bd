// @ts-check
/**
 * Charts on a page: drawn at most twice a second, together in one frame, only while they can be
 * seen; in the page's colours.
 */

const REDRAW_MS = 500;
const CONFIG = { responsive: true, displaylogo: false, showSendToCloud: false, displayModeBar: false };

/** @type {Set<Chart>} */
const waiting = new Set();
let timer = 0;
let drawnAt = 0;

function soon() {
  if (timer || document.hidden) return;
  const delay = Math.max(0, REDRAW_MS - (performance.now() - drawnAt));
  timer = window.setTimeout(() => requestAnimationFrame(drawAll), delay);
}

function drawAll() {
  timer = 0;
  drawnAt = performance.now();
  for (const chart of waiting) {
    if (!chart.isVisible) continue;
    waiting.delete(chart);
    chart.drawNow();
  }
}

document.addEventListener("visibilitychange", () => { if (!document.hidden && waiting.size) soon(); });
document.addEventListener("themechange", () => {
  for (const chart of all) chart.draw();
});

/** @type {Set<Chart>} */
const all = new Set();
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    for (const chart of all) {
      if (chart.element !== entry.target) continue;
      chart.isVisible = entry.isIntersecting;
      if (chart.isVisible && waiting.has(chart)) soon();
    }
  }
}, { rootMargin: "200px" });

/** @param {string} name */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/**
 * @typedef {{name: string, x: (number | Date)[], y: (number | null)[], dash?: string, fill?: boolean}} Trace
 * @typedef {{traces: Trace[], limit?: {value: number, name: string} | null, limits?: {value: number, name: string}[], x?: "time" | "step" | "number", xTitle?: string, stepped?: boolean, fromZero?: boolean, unit?: string, max?: number | null, isSmall?: boolean, range?: [number, number]}} Picture
 */

/**
 * A card with a title, the newest values, and a place for a chart.
 * @param {HTMLElement} place
 * @param {string} title
 * @param {() => Picture} picture
 * @param {() => [string, string][]} latest name and value of each curve; "" for a name that says nothing
 */
export function chartCard(place, title, picture, latest) {
  const card = document.createElement("figure");
  card.className = "card chart";
  const head = document.createElement("figcaption");
  head.className = "chart__head";
  const heading = document.createElement("h3");
  heading.textContent = title;
  const values = document.createElement("span");
  values.className = "chart__latest";
  head.append(heading, values);
  const plot = document.createElement("div");
  plot.className = "chart__plot";
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-label", `Chart of ${title}`);
  card.append(head, plot);
  place.append(card);
  return new Chart(plot, () => {
    const entries = latest();
    showKeys(values, entries);
    plot.setAttribute("aria-label", `Chart of ${title}. Latest: ${entries.map((entry) => entry.join(" ").trim()).join(", ")}`);
    return picture();
  });
}

/**
 * Say what each curve is, in its colour, and its newest value.
 * @param {HTMLElement} element
 * @param {[string, string][]} entries
 */
function showKeys(element, entries) {
  element.replaceChildren(...entries.map(([name, value], index) => {
    const key = document.createElement("span");
    if (name) key.className = `key key--${(index % 6) + 1}`;
    key.textContent = `${name} ${value}`.trim();
    return key;
  }));
}

/** Seconds are shown only where the chart is short enough for them. @param {Trace[]} traces */
function clockFormat(traces) {
  const firsts = traces.map((trace) => Number(trace.x[0])).filter(Number.isFinite);
  const lasts = traces.map((trace) => Number(trace.x.at(-1))).filter(Number.isFinite);
  const spanMs = firsts.length ? Math.max(...lasts) - Math.min(...firsts) : 0;
  return spanMs < 5 * 60_000 ? "%H:%M:%S" : spanMs < 20 * 3_600_000 ? "%H:%M" : "%b %-d %H:%M";
}

export class Chart {
  /**
   * @param {HTMLElement} element
   * @param {() => Picture} picture what is to be drawn, asked for when it is drawn
   */
  constructor(element, picture) {
    this.element = element;
    this.picture = picture;
    this.isVisible = false;
    all.add(this);
    watcher.observe(element);
  }

  /** Draw soon. */
  draw() {
    waiting.add(this);
    soon();
  }

  drawNow() {
    const picture = this.picture();
    const { traces, limit = null, x = "time", unit = "", max = null, isSmall = false, range } = picture;
    const limits = picture.limits ?? (limit ? [limit] : []);
    const xTitle = picture.xTitle ?? (x === "step" ? "step" : "");
    const text = colour("--text-muted");
    const grid = colour("--chart-grid");
    const drawn = traces.map((trace, index) => {
      const own = colour(`--series-${(index % 6) + 1}`);
      return {
        type: "scatter",
        // One point alone is no line; it is shown as a point.
        mode: trace.y.filter((value) => value !== null).length < 2 ? "markers" : "lines",
        name: trace.name,
        x: x === "time" ? trace.x.map((at) => new Date(at)) : trace.x,
        y: trace.y,
        connectgaps: false,
        line: { color: own, width: 1.8, dash: trace.dash ?? "solid", shape: picture.stepped ? "hv" : "linear" },
        marker: { color: own, size: 6 },
        // A fill would bridge a gap, so only what has none is filled.
        fill: trace.fill && !trace.y.includes(null) ? "tozeroy" : "none",
        fillcolor: `${own}22`,
        hovertemplate: `%{y:.4~g}${unit}<extra>${trace.name}</extra>`,
      };
    });
    const axis = { color: text, gridcolor: grid, linecolor: grid, zeroline: false, tickfont: { size: 11 }, fixedrange: isSmall };
    const layout = {
      autosize: true,
      margin: isSmall ? { l: 34, r: 12, t: 6, b: 20 } : { l: 46, r: 20, t: 8, b: xTitle ? 36 : 24 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colour("--text") },
      // The names stand above the chart with their colours, as text (see showKeys).
      showlegend: false,
      hovermode: "x unified",
      hoverlabel: { bgcolor: colour("--surface"), bordercolor: colour("--border"), font: { color: colour("--text"), size: 12 } },
      xaxis: {
        ...axis,
        type: x === "time" ? "date" : "linear",
        nticks: Math.max(2, Math.min(isSmall ? 4 : 6, Math.floor(this.element.clientWidth / 90))),
        tickangle: 0,
        ...(x === "time" ? { tickformat: clockFormat(traces) } : {}),
        ...(x === "step" ? { tickformat: ",d" } : {}),
        ...(xTitle ? { title: { text: xTitle, font: { size: 11, color: text }, standoff: 4 } } : {}),
        ...(range ? { range: range.map((at) => new Date(at)) } : {}),
      },
      yaxis: {
        ...axis,
        nticks: isSmall ? 3 : 5,
        rangemode: x === "time" || picture.fromZero ? "tozero" : "normal",
        ...(max ? { range: [0, max] } : {}),
      },
      shapes: limits.map((one) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: one.value, y1: one.value, line: { color: text, width: 1, dash: "dot" } })),
      annotations: limits.map((one) => ({ xref: "paper", x: 1, xanchor: "right", y: one.value, yanchor: "bottom", text: one.name, showarrow: false, font: { size: 10, color: text } })),
      uirevision: "kept",
    };
    // @ts-ignore Plotly is a classic script
    globalThis.Plotly.react(this.element, drawn, layout, CONFIG);
    this.element.dataset.points = String(Math.max(0, ...traces.map((trace) => trace.x.length)));
  }

  /** Let the chart go with its element. */
  remove() {
    all.delete(this);
    waiting.delete(this);
    watcher.unobserve(this.element);
  }
}
