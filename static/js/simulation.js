// @ts-check
/** A simulation's answer: one chart a quantity, one curve a policy. */
import { figure as number } from "./amounts.js";
import { chartCard } from "./charts.js";
import { inUnit, unitOf } from "./spans.js";

/**
 * @typedef {{name: string, x: number[], y: number[]}} Curve
 * @typedef {{title: string, unit: string, x_title: string, curves: Curve[], steps: boolean}} Figure
 */

function build() {
  const place = document.getElementById("figures");
  if (!place || place.childElementCount) return;
  for (const one of /** @type {Figure[]} */ (JSON.parse(place.dataset.figures ?? "[]"))) show(place, one);
}

/** @param {HTMLElement} place @param {Figure} one */
function show(place, one) {
  const longest = Math.max(0, ...one.curves.map((curve) => curve.x.at(-1) ?? 0));
  if (!one.curves.some((curve) => curve.y.some(Boolean))) return;
  const unit = unitOf(longest);
  const chart = chartCard(place, one.title, () => ({
    x: "number",
    xTitle: one.x_title.replace("seconds", unit.words),
    unit: one.unit ? ` ${one.unit}` : "",
    stepped: one.steps,
    fromZero: true,
    max: one.unit.startsWith("%") ? 104 : null,
    traces: one.curves.map((curve) => ({ name: curve.name, x: curve.x.map((at) => inUnit(at, unit)), y: curve.y })),
  }), () => one.curves.map((curve) => [curve.name, one.steps ? `at most ${number(Math.max(0, ...curve.y))}` : ""]));
  chart.draw();
}

build();
// The answer is swapped in when it is there; the curves come with it.
document.body.addEventListener("htmx:afterSwap", build);
