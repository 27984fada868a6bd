// @ts-check
/** A socket that comes back: with back-off and jitter, and never two at once. */

/**
 * Delay before the next attempt, in milliseconds: doubles up to a cap, with jitter so that many
 * pages do not return at once after a restart.
 *
 * @param {number} attempt 0 for the first retry
 * @param {() => number} random in [0, 1)
 */
export function backoffMs(attempt, random = Math.random) {
  const ceiling = Math.min(30_000, 500 * 2 ** attempt);
  return ceiling / 2 + (ceiling / 2) * random();
}

/** Close codes after which coming back is pointless: not signed in, nothing there. */
const FINAL_CODES = new Set([4401, 4404]);

/**
 * @typedef {"connecting" | "live" | "waiting" | "closed"} LinkState
 * @typedef {object} Surroundings
 * @property {new (url: string) => WebSocket} WebSocket
 * @property {(act: () => void, ms: number) => unknown} after
 * @property {() => number} random
 */

export class LiveSocket {
  /**
   * @param {string} url
   * @param {{onMessage: (message: any) => void, onState?: (state: LinkState, code?: number) => void}} listeners
   * @param {Partial<Surroundings>} [surroundings] for tests
   */
  constructor(url, { onMessage, onState = () => {} }, surroundings = {}) {
    this.url = url;
    this.onMessage = onMessage;
    this.onState = onState;
    this.WebSocket = surroundings.WebSocket ?? globalThis.WebSocket;
    this.after = surroundings.after ?? ((act, ms) => setTimeout(act, ms));
    this.random = surroundings.random ?? Math.random;
    this.attempt = 0;
    /** @type {WebSocket | null} */
    this.socket = null;
    this.ended = false;
  }

  open() {
    if (this.ended || this.socket) return;
    this.onState("connecting");
    const socket = new this.WebSocket(this.url);
    this.socket = socket;
    socket.onmessage = (event) => {
      if (socket !== this.socket) return;
      if (this.attempt) this.attempt = 0;
      const message = JSON.parse(event.data);
      // Several messages may come as one.
      for (const one of message.type === "batch" ? message.messages : [message]) this.onMessage(one);
    };
    socket.onopen = () => { if (socket === this.socket) this.onState("live"); };
    socket.onclose = (event) => {
      if (socket !== this.socket) return;
      this.socket = null;
      if (this.ended || FINAL_CODES.has(event.code)) {
        this.ended = true;
        this.onState("closed", event.code);
        return;
      }
      this.onState("waiting", event.code);
      const delay = backoffMs(this.attempt, this.random);
      this.attempt += 1;
      this.after(() => this.open(), delay);
    };
  }

  close() {
    this.ended = true;
    const socket = this.socket;
    this.socket = null;
    socket?.close();
    this.onState("closed");
  }
}

/**
 * The address of a socket of this site.
 * @param {string} path
 * @param {{protocol: string, host: string}} place
 */
export function socketUrl(path, place = location) {
  return `${place.protocol === "https:" ? "wss:" : "ws:"}//${place.host}${path}`;
}

const WORDS = { connecting: "connecting", live: "live", waiting: "reconnecting", closed: "not live" };

/**
 * Say in words whether the page is live.
 * @param {LinkState} state
 * @param {number} [code]
 */
export function showState(state, code) {
  for (const element of document.querySelectorAll("[data-live-state]")) {
    /** @type {HTMLElement} */ (element).dataset.state = state;
    element.textContent = code === 4401 ? "signed out" : WORDS[state];
  }
}
