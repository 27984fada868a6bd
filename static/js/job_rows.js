// @ts-check
/** Tables of jobs: a row is swapped when its job's state changes. */
import { LiveSocket, showState, socketUrl } from "./live.js";

/** Ask for the row anew, from where its address stands. @param {string} job */
function refresh(job) {
  const row = document.getElementById(`job-${job}`);
  const url = row?.dataset.rowUrl;
  // @ts-ignore htmx is a classic script
  if (row && url) globalThis.htmx?.ajax("GET", url, { target: row, swap: "outerHTML" });
}

// The socket tells of one's own jobs only; those of others, which staff see, are asked for.
setInterval(() => {
  if (document.hidden) return;
  for (const row of document.querySelectorAll("tr[data-ask]")) refresh(/** @type {HTMLElement} */ (row).dataset.job ?? "");
}, 10_000);

let wasLost = false;
const live = new LiveSocket(socketUrl("/ws/jobs/"), {
  onMessage(message) { if (message.type === "status") refresh(message.job); },
  onState(state, code) {
    showState(state, code);
    if (state === "waiting") wasLost = true;
    if (state === "live" && wasLost) {
      wasLost = false;
      for (const row of document.querySelectorAll("tr[data-job]")) refresh(/** @type {HTMLElement} */ (row).dataset.job ?? "");
    }
  },
});
live.open();
