// @ts-check
/** Colours in program output, as elements with classes: no markup is ever made of what a program printed. */
import { AnsiUp } from "../vendor/ansi_up.js";

/**
 * @typedef {{class_name: string, rgb: number[]} | null} Colour
 * @typedef {{text: string, fg: Colour, bg: Colour, bold: boolean, faint: boolean, italic: boolean, underline: boolean}} Fragment
 */

class Fragments extends AnsiUp {
  constructor() {
    super();
    /** @type {Fragment[]} */
    this.found = [];
  }

  /** Keep what would have become HTML. @param {Fragment} fragment */
  transform_to_html(fragment) {
    if (fragment.text) this.found.push({ ...fragment });
    return "";
  }

  /** A link is shown as its text. @param {{text: string}} packet */
  process_hyperlink(packet) {
    if (packet.text) this.found.push({ text: packet.text, fg: null, bg: null, bold: false, faint: false, italic: false, underline: true });
    return "";
  }
}

/**
 * Split a line into pieces of one look each; what is no colour is left out.
 * @param {string} text
 * @returns {Fragment[]}
 */
export function fragments(text) {
  const parser = new Fragments();
  parser.ansi_to_html(text);
  return parser.found;
}

/** @param {Fragment} fragment */
export function classesOf(fragment) {
  const names = [];
  if (fragment.fg && fragment.fg.class_name !== "truecolor") names.push(fragment.fg.class_name);
  for (const look of /** @type {const} */ (["bold", "faint", "italic", "underline"])) {
    if (fragment[look]) names.push(`ansi-${look}`);
  }
  return names;
}

/**
 * Put a line into an element.
 * @param {HTMLElement} element
 * @param {string} text
 */
export function render(element, text) {
  if (!text.includes("\u001b")) {
    element.textContent = text;
    return;
  }
  element.textContent = "";
  for (const fragment of fragments(text)) {
    const piece = document.createElement("span");
    piece.textContent = fragment.text;
    piece.className = classesOf(fragment).join(" ");
    if (fragment.fg?.class_name === "truecolor") piece.style.color = `rgb(${fragment.fg.rgb.join(",")})`;
    element.append(piece);
  }
}
