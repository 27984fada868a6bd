// @ts-check
/**
 * The numbered lines of one output, as far as this page has them. Lines come in any order, twice
 * or not at all; what is missing is told as ranges to be asked for.
 */

/** @typedef {[number, string, string]} Line milliseconds since 1970, "o" or "e", text */

const BLOCK = 512;

export class LogStore {
  constructor() {
    /** @type {Map<number, (Line | undefined)[]>} */
    this.blocks = new Map();
    /** Number of the last line that is known to exist. */
    this.last = 0;
    this.count = 0;
    this.isComplete = false;
    this.droppedLines = 0;
  }

  /**
   * Take lines from number `first` on; what is already here is left as it is.
   * @param {number} first counted from 1
   * @param {Line[]} lines
   * @returns {number} how many were new
   */
  add(first, lines) {
    let fresh = 0;
    lines.forEach((line, offset) => {
      const number = first + offset;
      const key = Math.floor((number - 1) / BLOCK);
      let block = this.blocks.get(key);
      if (!block) this.blocks.set(key, (block = new Array(BLOCK)));
      const place = (number - 1) % BLOCK;
      if (block[place] === undefined) {
        block[place] = line;
        fresh += 1;
      }
    });
    this.count += fresh;
    this.reach(first + lines.length - 1);
    return fresh;
  }

  /** Learn that lines up to this number exist. @param {number} last */
  reach(last) {
    this.last = Math.max(this.last, last);
  }

  /** @param {number} number @returns {Line | undefined} */
  get(number) {
    return this.blocks.get(Math.floor((number - 1) / BLOCK))?.[(number - 1) % BLOCK];
  }

  /**
   * The stretches between two numbers that are not here.
   * @param {number} from
   * @param {number} to inclusive
   * @param {number} longest no stretch is longer than this
   * @returns {[number, number][]} first and last number of each
   */
  missing(from, to, longest = 2000) {
    /** @type {[number, number][]} */
    const found = [];
    let start = 0;
    const end = Math.min(to, this.last);
    for (let number = Math.max(1, from); number <= end; number += 1) {
      if (this.get(number) === undefined) {
        if (!start) start = number;
        if (number - start + 1 >= longest) {
          found.push([start, number]);
          start = 0;
        }
      } else if (start) {
        found.push([start, number - 1]);
        start = 0;
      }
    }
    if (start) found.push([start, end]);
    return found;
  }
}

/**
 * Asks for missing lines, one request at a time, and each stretch only once at a time.
 */
export class Backfill {
  /**
   * @param {LogStore} store
   * @param {(first: number, limit: number) => Promise<{first: number, lines: Line[], next_line: number, is_complete: boolean, dropped_lines: number}>} fetchPage
   * @param {() => void} onLines
   */
  constructor(store, fetchPage, onLines) {
    this.store = store;
    this.fetchPage = fetchPage;
    this.onLines = onLines;
    /** @type {[number, number] | null} */
    this.wanted = null;
    /** @type {Promise<void> | null} */
    this.running = null;
  }

  /**
   * See to it that these lines come; a later wish replaces one that has not begun.
   * @param {number} from
   * @param {number} to
   */
  want(from, to) {
    this.wanted = [from, to];
    this.running ??= this.run().finally(() => { this.running = null; });
    return this.running;
  }

  async run() {
    while (this.wanted) {
      const [from, to] = this.wanted;
      const [stretch] = this.store.missing(from, to);
      if (!stretch) {
        this.wanted = null;
        return;
      }
      let page;
      try {
        page = await this.fetchPage(stretch[0], stretch[1] - stretch[0] + 1);
      } catch {
        // The next message, scroll or reconnection asks again.
        this.wanted = null;
        return;
      }
      this.take(page);
      // Nothing came although it must be there: do not ask in circles.
      if (!page.lines.length) this.wanted = null;
      this.onLines();
    }
  }

  /** @param {{first: number, lines: Line[], next_line: number, is_complete: boolean, dropped_lines: number}} page */
  take(page) {
    this.store.add(page.first, page.lines);
    this.store.reach(page.next_line - 1);
    this.store.isComplete = page.is_complete;
    this.store.droppedLines = page.dropped_lines;
  }
}
