// @ts-check
/** The output on the page: only the lines that can be seen are elements. */
import { render } from "./ansi.js";
import { Backfill, LogStore } from "./log_store.js";

const LINE = 20;
const AROUND = 20;
/** Taller than this no browser makes an element; far more lines than a log's quota holds. */
const TALLEST = 30_000_000;

export class LogView {
  /**
   * @param {{root: HTMLElement, fetchPage: (first: number, limit: number) => Promise<any>, search: (text: string) => Promise<number[]>}} options
   */
  constructor({ root, fetchPage, search }) {
    /** @param {string} id */
    const part = (id) => /** @type {HTMLElement} */ (root.querySelector(`#log-${id}`));
    this.root = root;
    this.view = part("view");
    this.space = part("space");
    this.empty = part("empty");
    this.count = part("count");
    this.followButton = part("follow");
    this.searchInput = /** @type {HTMLInputElement} */ (part("search"));
    this.previous = /** @type {HTMLButtonElement} */ (part("previous"));
    this.next = /** @type {HTMLButtonElement} */ (part("next"));
    this.find = search;
    this.store = new LogStore();
    this.backfill = new Backfill(this.store, fetchPage, () => this.draw());
    /** @type {Map<number, HTMLElement>} */
    this.shown = new Map();
    /** @type {number[]} */
    this.hits = [];
    this.hit = -1;
    this.target = 0;
    /** Where the next drawing scrolls to; only then is the space as tall as it must be. */
    this.goal = 0;
    this.follows = true;
    this.scheduled = false;
    this.searched = 0;
    this.listen();
  }

  listen() {
    this.view.addEventListener("scroll", () => {
      const atEnd = this.view.scrollTop + this.view.clientHeight >= this.view.scrollHeight - LINE;
      if (!this.ownScroll) this.setFollow(atEnd);
      this.ownScroll = false;
      this.draw();
    });
    this.followButton.addEventListener("click", () => {
      this.setFollow(!this.follows);
      this.draw();
    });
    this.view.addEventListener("keydown", (event) => {
      if (event.key === "Home" || event.key === "End") {
        event.preventDefault();
        this.setFollow(event.key === "End");
        if (event.key === "Home") this.view.scrollTop = 0;
        this.draw();
      }
    });
    let timer = 0;
    this.searchInput.addEventListener("input", () => {
      clearTimeout(timer);
      timer = window.setTimeout(() => this.search(), 250);
    });
    this.searchInput.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.step(event.shiftKey ? -1 : 1);
    });
    this.previous.addEventListener("click", () => this.step(-1));
    this.next.addEventListener("click", () => this.step(1));
    window.addEventListener("hashchange", () => this.toHash());
    new ResizeObserver(() => this.draw()).observe(this.view);
  }

  /** @param {boolean} follows */
  setFollow(follows) {
    this.follows = follows;
    this.followButton.setAttribute("aria-pressed", String(follows));
  }

  /** Take lines that came by themselves. @param {number} first @param {any[]} lines */
  add(first, lines) {
    this.store.add(first, lines);
    this.draw();
  }

  /** Learn how far the output is stored. @param {number} nextLine @param {boolean} isComplete */
  reach(nextLine, isComplete) {
    this.store.reach(nextLine - 1);
    this.store.isComplete = isComplete;
    this.draw();
  }

  draw() {
    if (this.scheduled) return;
    this.scheduled = true;
    requestAnimationFrame(() => {
      this.scheduled = false;
      this.drawNow();
    });
  }

  get height() {
    return Math.min(TALLEST, this.store.last * LINE);
  }

  drawNow() {
    const { last } = this.store;
    this.empty.hidden = last > 0;
    if (last === 0 && this.store.isComplete) this.empty.textContent = "The program printed nothing.";
    this.space.style.height = `${this.height}px`;
    // Grows with the output up to what the style allows; room for the scroll bar below.
    this.view.style.height = `${Math.max(12 * 16, this.height + LINE)}px`;
    this.space.style.setProperty("--gutter", `${Math.max(3, String(last).length) + 1.5}em`);
    if (this.follows && this.view.clientHeight) {
      const end = this.height - this.view.clientHeight;
      if (Math.abs(this.view.scrollTop - end) > 1 && end > 0) {
        this.ownScroll = true;
        this.view.scrollTop = end;
      }
    }
    if (!this.view.clientHeight) return;
    if (this.goal && this.goal <= last) {
      this.ownScroll = true;
      this.view.scrollTop = Math.max(0, this.topOf(this.goal) - this.view.clientHeight / 2);
      this.goal = 0;
    }
    const first = Math.max(1, Math.floor(this.lineAt(this.view.scrollTop)) - AROUND);
    const until = Math.min(last, first + Math.ceil(this.view.clientHeight / LINE) + 2 * AROUND);
    for (const [number, element] of this.shown) {
      if (number < first || number > until) {
        element.remove();
        this.shown.delete(number);
      }
    }
    for (let number = first; number <= until; number += 1) this.place(number);
    if (last && this.store.missing(first, until).length) this.backfill.want(first, until);
    this.say();
  }

  /** @param {number} top */
  lineAt(top) {
    return 1 + (this.store.last * LINE > TALLEST ? (top / TALLEST) * this.store.last : top / LINE);
  }

  /** @param {number} number */
  topOf(number) {
    return this.store.last * LINE > TALLEST ? ((number - 1) / this.store.last) * TALLEST : (number - 1) * LINE;
  }

  /** @param {number} number */
  place(number) {
    const line = this.store.get(number);
    let element = this.shown.get(number);
    const known = line === undefined ? "no" : "yes";
    if (!element) {
      element = document.createElement("div");
      const anchor = document.createElement("a");
      anchor.href = `#L${number}`;
      anchor.textContent = String(number);
      anchor.setAttribute("aria-label", `Line ${number}`);
      anchor.tabIndex = -1;
      element.append(anchor, document.createElement("span"));
      this.shown.set(number, element);
      this.space.append(element);
    }
    element.style.top = `${this.topOf(number)}px`;
    const isHit = this.hits.includes(number);
    element.className = ["log__line",
      line?.[1] === "e" ? "log__line--error" : "",
      isHit ? "log__line--hit" : "",
      number === this.target ? "log__line--target" : "",
      line ? "" : "log__line--unknown"].filter(Boolean).join(" ");
    if (element.dataset.known === known) return;
    element.dataset.known = known;
    const text = /** @type {HTMLElement} */ (element.lastElementChild);
    if (line) {
      render(text, line[2]);
      element.title = new Date(line[0]).toLocaleTimeString();
    } else text.textContent = "…";
  }

  say() {
    const { last, droppedLines, isComplete } = this.store;
    if (this.searchInput.value) return;
    const lines = `${last.toLocaleString()} line${last === 1 ? "" : "s"}`;
    const dropped = droppedLines ? `, ${droppedLines.toLocaleString()} past the quota not kept` : "";
    const text = `${lines}${dropped}`;
    // Said to a screen reader once, when nothing more comes; not at every line.
    this.count.setAttribute("aria-live", isComplete ? "polite" : "off");
    if (this.count.textContent !== text) this.count.textContent = text;
    this.root.dataset.lines = String(last);
  }

  async search() {
    const text = this.searchInput.value.trim();
    const turn = (this.searched += 1);
    const hits = text ? await this.find(text).catch(() => []) : [];
    if (turn !== this.searched) return;
    this.hits = hits;
    this.hit = -1;
    this.previous.disabled = this.next.disabled = !hits.length;
    this.count.setAttribute("aria-live", "polite");
    if (text) this.count.textContent = hits.length ? `${hits.length}${hits.length >= 500 ? "+" : ""} found` : "not found";
    if (hits.length) this.step(1);
    this.draw();
  }

  /** @param {number} by */
  step(by) {
    if (!this.hits.length) return;
    this.hit = (this.hit + by + this.hits.length) % this.hits.length;
    this.count.textContent = `${this.hit + 1} of ${this.hits.length}${this.hits.length >= 500 ? "+" : ""}`;
    this.goTo(this.hits[this.hit]);
  }

  /** Show a line in the middle. @param {number} number */
  goTo(number) {
    this.target = this.goal = number;
    this.setFollow(false);
    this.draw();
  }

  toHash() {
    const number = Number(/^#L(\d+)$/.exec(location.hash)?.[1]);
    if (number) {
      this.goTo(number);
      this.root.scrollIntoView({ block: "center" });
    }
    return Boolean(number);
  }
}
