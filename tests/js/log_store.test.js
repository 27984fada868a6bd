import assert from "node:assert/strict";
import { test } from "node:test";
import { Backfill, LogStore } from "../../static/js/log_store.js";

const line = (number) => [number, "o", `line ${number}`];
const lines = (first, last) => Array.from({ length: last - first + 1 }, (_, i) => line(first + i));

/** A server that has `total` lines and counts what it is asked for. */
function server(total) {
  const asked = [];
  return {
    asked,
    fetchPage: async (first, limit) => {
      asked.push([first, limit]);
      return { first, lines: lines(first, Math.min(total, first + limit - 1)), next_line: total + 1, is_complete: false, dropped_lines: 0 };
    },
  };
}

test("a line that comes twice is kept once", () => {
  const store = new LogStore();

  assert.equal(store.add(1, lines(1, 10)), 10);
  assert.equal(store.add(6, lines(6, 12)), 2);
  assert.equal(store.count, 12);
  assert.equal(store.last, 12);
});

test("the first version of a line stays", () => {
  const store = new LogStore();
  store.add(3, [[1, "o", "first"]]);
  store.add(3, [[2, "o", "second"]]);

  assert.equal(store.get(3)[2], "first");
});

test("what is missing is told as stretches, whatever came in whatever order", () => {
  const store = new LogStore();
  store.add(600, lines(600, 605));
  store.add(2, lines(2, 3));

  assert.deepEqual(store.missing(1, 10_000), [[1, 1], [4, 599]]);
  assert.deepEqual(store.missing(1, 3), [[1, 1]]);
  assert.deepEqual(store.missing(600, 700), []);
});

test("no stretch is longer than what one request gives", () => {
  const store = new LogStore();
  store.reach(4500);

  assert.deepEqual(store.missing(1, 4500, 2000), [[1, 2000], [2001, 4000], [4001, 4500]]);
});

test("every gap that is wanted is filled, and nothing is asked for twice", async () => {
  const store = new LogStore();
  const { asked, fetchPage } = server(100_000);
  store.add(1, lines(1, 100));
  store.add(99_901, lines(99_901, 100_000));
  const backfill = new Backfill(store, fetchPage, () => {});

  await backfill.want(50, 150);
  await backfill.want(50, 150);

  assert.deepEqual(store.missing(1, 150), []);
  assert.deepEqual(asked, [[101, 50]]);
});

test("any loss and disorder of messages ends with every line, once", async () => {
  let seed = 11;
  const random = () => (seed = (seed * 16_807) % 2_147_483_647) / 2_147_483_647;
  for (let round = 0; round < 20; round += 1) {
    const total = 3000;
    const store = new LogStore();
    const messages = [];
    for (let first = 1; first <= total;) {
      const last = Math.min(total, first + Math.floor(random() * 60));
      messages.push([first, last]);
      first = last + 1;
    }
    for (const [first, last] of messages.sort(() => random() - 0.5)) {
      if (random() < 0.6) store.add(first, lines(first, last));
      if (random() < 0.2) store.add(first, lines(first, last));
    }
    const { fetchPage } = server(total);
    store.reach(total);
    await new Backfill(store, fetchPage, () => {}).want(1, total);

    assert.equal(store.count, total);
    for (let number = 1; number <= total; number += 1) assert.equal(store.get(number)[2], `line ${number}`);
  }
});

test("a server that fails or has nothing is not asked in circles", async () => {
  const store = new LogStore();
  store.reach(10);
  let asked = 0;
  const failing = new Backfill(store, async () => { asked += 1; throw new Error("down"); }, () => {});
  await failing.want(1, 10);
  const empty = new Backfill(store, async () => { asked += 1; return { first: 1, lines: [], next_line: 11, is_complete: false, dropped_lines: 0 }; }, () => {});
  await empty.want(1, 10);

  assert.equal(asked, 2);
});
