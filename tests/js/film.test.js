// @ts-check
import assert from "node:assert/strict";
import { test } from "node:test";
import { corners, enlarged, Film, mean, ranks } from "../../static/js/film.js";
import { inUnit, unitOf } from "../../static/js/spans.js";

/** @param {number} number @returns {any} */
const frame = (number) => ({
  iteration: number, seconds: number / 10, best_cost: 30 - number, left_out: number ? 0 : 2,
  diversity: 1 / (number + 1), positions: [[number, 0], [0, -number]], costs: [30 - number, 20000],
});

test("frames are kept once and in order, whatever comes again", () => {
  const film = new Film();
  film.take(0, [frame(0), frame(1)]);
  film.take(1, [frame(1), frame(2)]);
  film.take(0, [frame(0)]);
  film.take(9, [frame(9)]);
  assert.deepEqual(film.frames.map((one) => one.iteration), [0, 1, 2]);
  assert.equal(film.next, 3);
});

test("playing goes on frame by frame, and hurries where it lags", () => {
  const film = new Film();
  film.take(0, Array.from({ length: 40 }, (_, number) => frame(number)));
  const seen = [];
  for (let one = film.advance(); one; one = film.advance()) seen.push(one.iteration);
  assert.ok(seen[0] > 0 && seen.at(-1) === 39);
  assert.deepEqual(seen.slice(-6), [34, 35, 36, 37, 38, 39]);
  assert.equal(film.advance(), null);
  assert.equal(film.seek(5)?.iteration, 5);
  assert.equal(film.advance()?.iteration, 11);
});

test("curves end with the frame that is shown, and have a gap while requests are left out", () => {
  const film = new Film();
  film.take(0, [frame(0), frame(1), frame(2)]);
  film.seek(1);
  assert.deepEqual(film.curves().best, [null, 29]);
  assert.deepEqual(film.curves().leftOut, [2, 0]);
  assert.deepEqual(film.curves().x, [0, 0.1]);
});

test("the mean is of whole packings only", () => {
  assert.equal(mean([10, 20, 50000, null]), 15);
  assert.equal(mean([null, 20000]), null);
});

test("the plane holds every particle, a single one too", () => {
  const plane = corners([frame(1), frame(3)]);
  assert.ok(plane.left < 0 && plane.right > 3 && plane.bottom < -3 && plane.top > 0);
  const point = corners([/** @type {any} */ ({ positions: [[2, 2]] })]);
  assert.ok(point.left < 2 && point.right > 2);
  assert.deepEqual(corners([]), { left: -1, right: 1, bottom: -1, top: 1 });
});

test("particles are ranked from the best to the worst, those without a cost last", () => {
  assert.deepEqual(ranks([30, null, 10]), [0.5, 1, 0]);
  assert.deepEqual(ranks([7]), [0]);
});

test("an axis of time is in the unit that keeps its numbers small", () => {
  assert.equal(unitOf(50).words, "seconds");
  assert.equal(unitOf(3 * 3600).words, "hours");
  assert.equal(unitOf(90_000).words, "hours");
  assert.equal(unitOf(3 * 86_400).words, "days");
  assert.equal(inUnit(5400, unitOf(3 * 3600)), 1.5);
});

test("the middle is enlarged and the edges stay where they are", () => {
  assert.deepEqual([enlarged(0, 0, 4), enlarged(2, 0, 4), enlarged(4, 0, 4)], [0, 0.5, 1]);
  assert.ok(enlarged(2.1, 0, 4) - 0.5 > 0.1);
  assert.ok(enlarged(1, 0, 4) < enlarged(1.5, 0, 4));
});
