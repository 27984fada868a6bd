// @ts-check
/** Lengths of time as people read them; the same words as the server's. */

/** @type {[string, number][]} */
const UNITS = [["d", 86_400], ["h", 3600], ["min", 60], ["s", 1]];

/**
 * A length of time by its two largest units.
 * @param {number} seconds
 */
export function span(seconds) {
  let left = Math.max(0, Math.round(seconds));
  const words = [];
  for (const [unit, size] of UNITS) {
    const count = Math.floor(left / size);
    left -= count * size;
    if (count) words.push(`${count} ${unit}`);
  }
  return words.slice(0, 2).join(" ") || "0 s";
}

/**
 * How long ago a moment was.
 * @param {number} atMs
 * @param {number} nowMs
 */
export function ago(atMs, nowMs) {
  const seconds = (nowMs - atMs) / 1000;
  if (seconds < 0) return `in ${span(-seconds).split(" ").slice(0, 2).join(" ")}`;
  if (seconds < 45) return "just now";
  return `${span(seconds).split(" ").slice(0, 2).join(" ")} ago`;
}
