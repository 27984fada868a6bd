import assert from "node:assert/strict";
import { test } from "node:test";
import { bytes, figure, mib, percent } from "../../static/js/amounts.js";
import { classesOf, fragments } from "../../static/js/ansi.js";
import { ago, span } from "../../static/js/times.js";

test("colours become classes, and no markup is ever made of a program's output", () => {
  const parts = fragments("\u001b[1;31m<img src=x onerror=alert(1)>\u001b[0m & \u001b[92mok\u001b[0m");

  assert.deepEqual(parts.map(({ text }) => text), ["<img src=x onerror=alert(1)>", " & ", "ok"]);
  assert.deepEqual(parts.map(classesOf), [["ansi-red", "ansi-bold"], [], ["ansi-bright-green"]]);
});

test("moves of the cursor and other codes are left out", () => {
  assert.equal(fragments("\u001b[2K\u001b[1Gepoch 3\u001b[?25l").map(({ text }) => text).join(""), "epoch 3");
});

test("a true colour keeps its numbers and has no class", () => {
  const [part] = fragments("\u001b[38;2;1;2;3mx");

  assert.deepEqual(part.fg.rgb, [1, 2, 3]);
  assert.deepEqual(classesOf(part), []);
});

test("unknown is said, never shown as zero", () => {
  assert.deepEqual([mib(null), bytes(undefined), percent(null)], ["unknown", "unknown", "unknown"]);
  assert.deepEqual([mib(0), bytes(0), percent(0)], ["0 MiB", "0 B", "0 %"]);
});

test("amounts are short", () => {
  assert.deepEqual([mib(2560), mib(512.4), bytes(1_530_000), percent(99.6)], ["2.5 GiB", "512 MiB", "1.5 MB", "100 %"]);
  assert.deepEqual([figure(0.123456), figure(0), figure(1.5e-7), figure(123456), figure(null)], ["0.1235", "0", "1.50e-7", "1.23e+5", "none"]);
});

test("times have two units at most", () => {
  assert.deepEqual([span(0), span(59.6), span(3725), span(90_061)], ["0 s", "1 min", "1 h 2 min", "1 d 1 h"]);
  assert.deepEqual([ago(0, 10_000), ago(0, 3_700_000), ago(60_000, 0)], ["just now", "1 h ago", "in 1 min"]);
});
