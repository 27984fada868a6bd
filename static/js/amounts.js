// @ts-check
/** Amounts as people read them. */

/** @param {number | null | undefined} value */
export function mib(value) {
  if (value === null || value === undefined) return "unknown";
  return value >= 1024 ? `${trim(value / 1024, 1)} GiB` : `${trim(value, 0)} MiB`;
}

/** @param {number | null | undefined} value */
export function bytes(value) {
  if (value === null || value === undefined) return "unknown";
  let left = value;
  for (const unit of ["B", "KB", "MB", "GB", "TB"]) {
    if (Math.abs(left) < 1000 || unit === "TB") return `${trim(left, unit === "B" ? 0 : 1)} ${unit}`;
    left /= 1000;
  }
  return "";
}

/** @param {number | null | undefined} value */
export function percent(value) {
  return value === null || value === undefined ? "unknown" : `${trim(value, 0)} %`;
}

/** A number with four digits that matter. @param {number | null | undefined} value */
export function figure(value) {
  if (value === null || value === undefined) return "none";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

/** @param {number} value @param {number} digits */
function trim(value, digits) {
  return String(Number(value.toFixed(digits)));
}
