// @ts-check
/* Draws the figures of a simulation's report from the JSON in the page. */
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  /** @type {any} */
  const Plotly = /** @type {any} */ (window).Plotly;
  const json = document.getElementById("figures-json")?.textContent ?? "[]";
  const place = /** @type {HTMLElement} */ (document.getElementById("figures"));

  /** @param {string} name */
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  /** @param {any} figure */
  const traces = (figure) => figure.curves.map((/** @type {any} */ curve, /** @type {number} */ index) => ({
    type: "scatter",
    mode: "lines",
    name: curve.name,
    x: curve.x,
    y: curve.y,
    line: { shape: figure.steps ? "hv" : "linear", width: 1.5, color: colour(`--series-${(index % 6) + 1}`) },
  }));

  /** @param {any} figure */
  const layout = (figure) => ({
    margin: { l: 56, r: 12, t: 8, b: 44 },
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    font: { color: colour("--text-muted"), size: 12 },
    showlegend: figure.curves.length > 1,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    xaxis: { title: { text: figure.x_title }, gridcolor: colour("--chart-grid"), zeroline: false },
    yaxis: { title: { text: figure.unit }, gridcolor: colour("--chart-grid"), rangemode: "tozero", zeroline: false },
  });

  const drawn = JSON.parse(json).map((/** @type {any} */ figure) => {
    const card = document.createElement("figure");
    const title = document.createElement("figcaption");
    const plot = document.createElement("div");
    title.textContent = figure.title;
    plot.className = "plot";
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", `Chart of ${figure.title}`);
    card.append(title, plot);
    place.append(card);
    return { figure, plot };
  });

  const draw = () => {
    document.documentElement.dataset.theme = dark.matches ? "dark" : "light";
    for (const { figure, plot } of drawn) {
      Plotly.react(plot, traces(figure), layout(figure), {
        responsive: true, displaylogo: false, showSendToCloud: false, displayModeBar: false,
      });
    }
  };
  dark.addEventListener("change", draw);
  draw();
})();
