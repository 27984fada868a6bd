import assert from "node:assert/strict";
import { test } from "node:test";
import { backoffMs, LiveSocket, socketUrl } from "../../static/js/live.js";

class FakeSocket {
  static made = [];
  constructor(url) {
    this.url = url;
    FakeSocket.made.push(this);
  }
  close() {}
}

function linked(listeners = {}) {
  FakeSocket.made = [];
  const timers = [];
  const states = [];
  const messages = [];
  const live = new LiveSocket("ws://x/", {
    onMessage: (message) => messages.push(message),
    onState: (state, code) => states.push(code ? [state, code] : state),
    ...listeners,
  }, { WebSocket: FakeSocket, after: (act, ms) => timers.push([act, ms]), random: () => 1 });
  return { live, timers, states, messages };
}

test("the delay doubles up to a cap and is never less than half", () => {
  assert.deepEqual([0, 1, 2].map((n) => backoffMs(n, () => 0)), [250, 500, 1000]);
  assert.equal(backoffMs(50, () => 1), 30_000);
  for (let n = 0; n < 60; n += 1) {
    const ceiling = backoffMs(n, () => 1);
    assert.ok(backoffMs(n, () => 0) >= ceiling / 2);
    assert.ok(ceiling <= 30_000);
  }
});

test("a socket that closes comes back later each time, and at once again after a message", () => {
  const { live, timers } = linked();
  live.open();
  FakeSocket.made[0].onclose({ code: 1006 });
  timers[0][0]();
  FakeSocket.made[1].onclose({ code: 1006 });
  assert.ok(timers[1][1] > timers[0][1]);
  timers[1][0]();
  FakeSocket.made[2].onmessage({ data: '{"type":"status"}' });
  FakeSocket.made[2].onclose({ code: 1006 });

  assert.equal(timers[2][1], timers[0][1]);
});

test("there is never a second socket beside the first", () => {
  const { live } = linked();
  live.open();
  live.open();

  assert.equal(FakeSocket.made.length, 1);
});

test("who is signed out or has nothing there does not come back", () => {
  for (const code of [4401, 4404]) {
    const { live, timers, states } = linked();
    live.open();
    FakeSocket.made[0].onclose({ code });

    assert.equal(timers.length, 0);
    assert.deepEqual(states.at(-1), ["closed", code]);
  }
});

test("what an old socket still says is not heard", () => {
  const { live, timers, messages } = linked();
  live.open();
  const [old] = FakeSocket.made;
  old.onclose({ code: 1006 });
  timers[0][0]();
  old.onmessage({ data: '{"type":"log"}' });
  FakeSocket.made[1].onmessage({ data: '{"type":"status"}' });

  assert.deepEqual(messages, [{ type: "status" }]);
});

test("the address follows the page's own", () => {
  assert.equal(socketUrl("/ws/a/", { protocol: "https:", host: "lab.example:8443" }), "wss://lab.example:8443/ws/a/");
  assert.equal(socketUrl("/ws/a/", { protocol: "http:", host: "127.0.0.1:8000" }), "ws://127.0.0.1:8000/ws/a/");
});
