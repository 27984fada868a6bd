// @ts-check
/**
 * The frames of a search in the order of their numbers: which are still to be asked for, which is
 * to be shown now, and what their numbers are as curves.
 */

/**
 * @typedef {{iteration: number, seconds: number, best_cost: number | null, left_out: number, diversity: number | null, positions: [number, number][], costs: (number | null)[]}} Frame
 */

/** Above this a cost stands for requests that were left out, and is no cost of a whole packing. */
const PENALTY = 1e4;
/** So many frames behind, playing hurries. */
const BEHIND = 6;

export class Film {
  constructor() {
    /** @type {Frame[]} */
    this.frames = [];
    this.shown = -1;
  }

  /** The number of the first frame that is not here. */
  get next() {
    return this.frames.length;
  }

  /**
   * Take an answer; what is here already changes nothing, and what leaves a gap waits.
   * @param {number} first
   * @param {Frame[]} frames
   */
  take(first, frames) {
    if (first > this.next) return;
    this.frames.push(...frames.slice(this.next - first));
  }

  /** Go on by one frame, or by more where the picture lags; null at the end. */
  advance() {
    const left = this.frames.length - 1 - this.shown;
    if (left <= 0) return null;
    this.shown += left > BEHIND ? Math.ceil(left / BEHIND) : 1;
    return this.frames[this.shown];
  }

  /** @param {number} number @returns {Frame | undefined} */
  seek(number) {
    this.shown = Math.max(0, Math.min(number, this.frames.length - 1));
    return this.frames[this.shown];
  }

  /** The curves up to the frame that is shown. */
  curves() {
    const seen = this.frames.slice(0, this.shown + 1);
    return {
      x: seen.map((frame) => frame.seconds),
      best: seen.map((frame) => (frame.left_out ? null : frame.best_cost)),
      mean: seen.map((frame) => mean(frame.costs)),
      diversity: seen.map((frame) => frame.diversity),
      leftOut: seen.map((frame) => frame.left_out),
    };
  }
}

/**
 * The mean cost of the particles that place everything.
 * @param {(number | null)[]} costs
 */
export function mean(costs) {
  const whole = costs.filter((cost) => cost !== null && cost < PENALTY);
  return whole.length ? whole.reduce((sum, cost) => Number(sum) + Number(cost), 0) / whole.length : null;
}

/**
 * The corners of the plane in which all frames lie, with a margin; a point alone gets room.
 * @param {Frame[]} frames
 * @returns {{left: number, right: number, bottom: number, top: number}}
 */
export function corners(frames) {
  let [left, right, bottom, top] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const frame of frames) {
    for (const [x, y] of frame.positions) {
      left = Math.min(left, x);
      right = Math.max(right, x);
      bottom = Math.min(bottom, y);
      top = Math.max(top, y);
    }
  }
  if (left > right) return { left: -1, right: 1, bottom: -1, top: 1 };
  // About where the last of them have gathered, so that this is the middle.
  const last = frames[frames.length - 1].positions;
  const [x, y] = [middle(last.map((at) => at[0])), middle(last.map((at) => at[1]))];
  const wide = 1.08 * Math.max(right - x, x - left, 1e-6);
  const high = 1.08 * Math.max(top - y, y - bottom, 1e-6);
  return { left: x - wide, right: x + wide, bottom: y - high, top: y + high };
}

/** @param {number[]} values */
function middle(values) {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0;
}

/**
 * A place between 0 and 1, the middle enlarged, so that a swarm is seen to spread at the start
 * and still has a shape when it has drawn together.
 * @param {number} value @param {number} low @param {number} high
 */
export function enlarged(value, low, high) {
  const centred = (2 * (value - low)) / (high - low) - 1;
  return 0.5 + 0.5 * Math.sign(centred) * Math.abs(centred) ** 0.5;
}

/**
 * How good each particle is among them: 0 for the best, 1 for the worst.
 * @param {(number | null)[]} costs
 */
export function ranks(costs) {
  const order = costs.map((cost, index) => ({ cost: cost ?? Infinity, index })).sort((a, b) => a.cost - b.cost);
  const found = costs.map(() => 0);
  order.forEach((one, place) => { found[one.index] = costs.length > 1 ? place / (costs.length - 1) : 0; });
  return found;
}
