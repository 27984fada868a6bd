// @ts-check
/** Series of numbers for charts: in order, each moment once, gaps kept as gaps. */

/** Three missing seconds in a row are a gap. */
const WIDEST_MS = 3500;

/** @type {Record<string, string>} */
const WHY = {
  unsupported: "the driver cannot say",
  mig: "MIG: the driver cannot say",
  stale: "not read at present",
  lost: "the GPU is lost",
};

export class SampleSeries {
  /**
   * @param {number} keep how many samples at most
   * @param {number} widestMs a longer silence is a gap
   */
  constructor(keep = 3600, widestMs = WIDEST_MS) {
    this.keep = keep;
    this.widestMs = widestMs;
    /** @type {number[]} */
    this.times = [];
    /** @type {Record<string, number>[]} */
    this.values = [];
  }

  /**
   * Take a sample; one of a moment that is here already changes nothing.
   * @param {number} atMs
   * @param {Record<string, number>} values
   * @returns {boolean} whether it was new
   */
  add(atMs, values) {
    let place = this.times.length;
    while (place > 0 && this.times[place - 1] > atMs) place -= 1;
    if (place > 0 && this.times[place - 1] === atMs) return false;
    this.times.splice(place, 0, atMs);
    this.values.splice(place, 0, values);
    if (this.times.length > this.keep) {
      this.times.shift();
      this.values.shift();
    }
    return true;
  }

  /** Whether any sample says it. @param {string} name */
  has(name) {
    return this.values.some((values) => typeof values[name] === "number");
  }

  /** @param {string} name @returns {number | null} null where the last sample does not say */
  latest(name) {
    const value = this.values.at(-1)?.[name];
    return typeof value === "number" ? value : null;
  }

  /** Why the last sample does not say it, in words; "" where it does. @param {string} name */
  why(name) {
    const last = /** @type {any} */ (this.values.at(-1));
    return last && typeof last[name] !== "number" ? WHY[last.why?.[name]] ?? "unknown" : "";
  }

  /**
   * The two columns of a chart. A missing value is null, and a silence has a null inside.
   * @param {string} name
   * @param {(value: number) => number} scale
   * @returns {{x: number[], y: (number | null)[]}}
   */
  columns(name, scale = (value) => value) {
    /** @type {number[]} */
    const x = [];
    /** @type {(number | null)[]} */
    const y = [];
    this.times.forEach((at, index) => {
      const before = index ? this.times[index - 1] : at;
      if (at - before > this.widestMs) {
        x.push(before + 1);
        y.push(null);
      }
      const value = this.values[index][name];
      x.push(at);
      y.push(typeof value === "number" ? scale(value) : null);
    });
    return { x, y };
  }
}

/** Values that a program reported, by step; the last one of a step counts. */
export class MetricSeries {
  constructor() {
    /** @type {Map<number, number | null>} */
    this.points = new Map();
    this.isSorted = true;
    this.lastStep = -Infinity;
  }

  /** @param {number} step @param {number | null} value */
  add(step, value) {
    if (step < this.lastStep && !this.points.has(step)) this.isSorted = false;
    this.lastStep = Math.max(this.lastStep, step);
    this.points.set(step, value);
  }

  columns() {
    if (!this.isSorted) {
      this.points = new Map([...this.points].sort((a, b) => a[0] - b[0]));
      this.isSorted = true;
    }
    return { x: [...this.points.keys()], y: [...this.points.values()] };
  }

  /** @returns {number | null} */
  latest() {
    return this.points.get(this.lastStep) ?? null;
  }
}

/**
 * The chart in which a metric is drawn: a validation metric stands beside its training twin.
 * @param {string} name
 */
export function chartOf(name) {
  return name.replace(/^(val|valid|validation|test)[_-]/, "");
}
