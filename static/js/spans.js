// @ts-check
/** Axes of time whose seconds nobody would count: the unit that keeps numbers small. */

const UNITS = [
  { words: "days", seconds: 86_400 },
  { words: "hours", seconds: 3600 },
  { words: "minutes", seconds: 60 },
  { words: "seconds", seconds: 1 },
];

/**
 * The unit for a chart that is so long: the largest of which there are at least two.
 * @param {number} seconds
 */
export function unitOf(seconds) {
  return UNITS.find((unit) => seconds >= 2 * unit.seconds) ?? UNITS[UNITS.length - 1];
}

/** @param {number} seconds @param {{seconds: number}} unit */
export function inUnit(seconds, unit) {
  return seconds / unit.seconds;
}
