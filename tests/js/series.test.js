import assert from "node:assert/strict";
import { test } from "node:test";
import { chartOf, MetricSeries, SampleSeries } from "../../static/js/series.js";

test("samples are in order, and each moment counts once", () => {
  const series = new SampleSeries();
  for (const at of [3000, 1000, 2000, 1000, 3000]) series.add(at, { cpu_pct: at });

  assert.deepEqual(series.times, [1000, 2000, 3000]);
  assert.equal(series.add(2000, { cpu_pct: 9 }), false);
  assert.deepEqual(series.columns("cpu_pct").y, [1000, 2000, 3000]);
});

test("a silence is a gap, and so is a value that a sample does not have", () => {
  const series = new SampleSeries();
  series.add(1000, { cpu_pct: 0 });
  series.add(2000, {});
  series.add(9000, { cpu_pct: 5 });

  assert.deepEqual(series.columns("cpu_pct"), { x: [1000, 2000, 2001, 9000], y: [0, null, null, 5] });
});

test("a gap says why", () => {
  const series = new SampleSeries();
  assert.equal(series.why("power_w"), "");
  series.add(1, /** @type {any} */ ({ cpu_pct: 0, why: { power_w: "mig", fan_pct: "stale" } }));

  assert.equal(series.why("power_w"), "MIG: the driver cannot say");
  assert.equal(series.why("fan_pct"), "not read at present");
  assert.equal(series.why("clock_mhz"), "unknown");
  assert.equal(series.why("cpu_pct"), "");
});

test("zero is a reading, and unknown is not zero", () => {
  const series = new SampleSeries();
  series.add(1, { cpu_pct: 0 });

  assert.equal(series.latest("cpu_pct"), 0);
  assert.equal(series.latest("memory_mib"), null);
});

test("only so many samples are kept, the newest", () => {
  const series = new SampleSeries(3);
  for (let at = 1; at <= 10; at += 1) series.add(at, {});

  assert.deepEqual(series.times, [8, 9, 10]);
});

test("the last value of a step counts, and steps are in order however they came", () => {
  const series = new MetricSeries();
  series.add(2, 0.5);
  series.add(1, 0.9);
  series.add(2, 0.4);
  series.add(3, null);

  assert.deepEqual(series.columns(), { x: [1, 2, 3], y: [0.9, 0.4, null] });
  assert.equal(series.latest(), null);
});

test("a validation metric is drawn beside its twin", () => {
  assert.deepEqual(["loss", "val_loss", "validation-loss", "value", "test_accuracy"].map(chartOf), ["loss", "loss", "loss", "value", "accuracy"]);
});
