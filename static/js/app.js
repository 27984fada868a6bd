// @ts-check
/** What every page has: confirmations, dismissing, copying, menus, and times that grow older. */
import { ago, span } from "./times.js";

/** Ask before a form with data-confirm is sent. @param {HTMLFormElement} form */
function confirmThenSend(form) {
  const dialog = /** @type {HTMLDialogElement} */ (document.getElementById("confirm"));
  const yes = /** @type {HTMLButtonElement} */ (document.getElementById("confirm-yes"));
  const no = /** @type {HTMLButtonElement} */ (document.getElementById("confirm-no"));
  const text = document.getElementById("confirm-text");
  if (text) text.textContent = form.dataset.confirm ?? "";
  yes.textContent = form.dataset.confirmYes ?? "Yes";
  dialog.returnValue = "";
  dialog.addEventListener("close", () => { if (dialog.returnValue === "yes") form.submit(); }, { once: true });
  yes.onclick = () => dialog.close("yes");
  no.onclick = () => dialog.close("no");
  dialog.showModal();
  no.focus();
}

document.addEventListener("submit", (event) => {
  const form = /** @type {HTMLFormElement} */ (event.target);
  if (form.dataset.confirm === undefined) return;
  event.preventDefault();
  confirmThenSend(form);
});

document.addEventListener("click", async (event) => {
  const target = /** @type {Element} */ (event.target);
  target.closest("[data-dismiss]")?.closest(".notice")?.remove();
  const copy = target.closest("[data-copy]");
  if (copy instanceof HTMLElement) {
    const source = document.querySelector(copy.dataset.copy ?? "");
    await navigator.clipboard?.writeText(source?.textContent ?? "");
    say("Copied.");
  }
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(target)) menu.removeAttribute("open");
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    menu.removeAttribute("open");
    menu.querySelector("summary")?.focus();
  }
});

/** Tell a screen reader and the eye. @param {string} text */
export function say(text) {
  const region = document.getElementById("messages");
  if (!region) return;
  const notice = document.createElement("div");
  notice.className = "notice notice--info";
  const words = document.createElement("p");
  words.textContent = text;
  notice.append(words);
  region.append(notice);
  setTimeout(() => notice.remove(), 6000);
}

/** Let shown times grow older. */
export function refreshTimes() {
  const now = Date.now();
  for (const element of document.querySelectorAll("time[data-ago]")) {
    const at = Date.parse(element.getAttribute("datetime") ?? "");
    if (!Number.isNaN(at)) element.textContent = ago(at, now);
  }
  for (const element of document.querySelectorAll("[data-since-ms]")) {
    const since = Number(/** @type {HTMLElement} */ (element).dataset.sinceMs);
    if (since) element.textContent = span((now - since) / 1000);
  }
}
setInterval(refreshTimes, 1000);
document.getElementById("form-errors")?.focus();
