// @ts-check
/** Files on their way to becoming datasets: resumable by tus, several at a time. */
import { bytes } from "./amounts.js";
import { span } from "./times.js";

const root = /** @type {HTMLElement} */ (document.getElementById("upload"));
const drop = /** @type {HTMLElement} */ (document.getElementById("drop"));
const input = /** @type {HTMLInputElement} */ (document.getElementById("files"));
const list = /** @type {HTMLElement} */ (document.getElementById("uploads"));
const row = /** @type {HTMLTemplateElement} */ (document.getElementById("upload-row"));
const status = /** @type {HTMLElement} */ (document.getElementById("upload-status"));
const PART = 8 * 2 ** 20;

/** What went wrong, in the server's words where it has some. @param {any} error */
export function reasonOf(error) {
  const text = error?.originalResponse?.getBody?.();
  if (text) {
    try {
      const answer = JSON.parse(text);
      if (answer.message) return answer.message;
    } catch { /* not ours: a proxy's page */ }
  }
  const code = error?.originalResponse?.getStatus?.();
  if (code === 413) return "The file is too large for your quota or for this site.";
  return code ? `The server answered ${code}.` : "The connection is lost; resume when it is back.";
}

/** @param {File} file */
function start(file) {
  const item = /** @type {HTMLElement} */ (/** @type {DocumentFragment} */ (row.content.cloneNode(true)).firstElementChild);
  /** @param {string} query */
  const part = (query) => /** @type {any} */ (item.querySelector(query));
  const bar = /** @type {HTMLProgressElement} */ (part("progress"));
  const state = part(".upload__state");
  const pause = /** @type {HTMLButtonElement} */ (part("[data-act=pause]"));
  const cancel = /** @type {HTMLButtonElement} */ (part("[data-act=cancel]"));
  part(".upload__name").textContent = file.name;
  bar.setAttribute("aria-label", `Upload of ${file.name}`);
  pause.setAttribute("aria-label", `Pause ${file.name}`);
  cancel.setAttribute("aria-label", `Cancel ${file.name}`);
  list.append(item);

  let runs = false;
  let began = 0;
  let beganAt = 0;
  let dataset = "";
  // @ts-ignore tus is a classic script
  const upload = new globalThis.tus.Upload(file, {
    endpoint: root.dataset.endpoint,
    chunkSize: PART,
    retryDelays: [500, 1000, 3000, 6000, 12000],
    metadata: { filename: file.name, ...(root.dataset.dataset ? { dataset: root.dataset.dataset } : {}) },
    // The same file for another dataset is another upload.
    fingerprint: async () => ["starling", root.dataset.dataset ?? "", file.name, file.size, file.lastModified].join("-"),
    removeFingerprintOnSuccess: true,
    /** @param {any} request */
    onBeforeRequest(request) {
      request.setHeader("X-CSRFToken", document.querySelector("meta[name=csrf-token]")?.getAttribute("content") ?? "");
    },
    /** @param {any} _ @param {any} answer */
    onAfterResponse(_, answer) {
      dataset = answer.getHeader("Starling-Dataset") ?? dataset;
    },
    /** @param {any} error */
    onShouldRetry(error) {
      const code = error.originalResponse?.getStatus?.() ?? 0;
      return code === 0 || code === 409 || code === 423 || code >= 500;
    },
    /** @param {number} sent @param {number} total */
    onProgress(sent, total) {
      const now = performance.now();
      if (!beganAt) { beganAt = now; began = sent; }
      const rate = (sent - began) / Math.max(0.001, (now - beganAt) / 1000);
      bar.value = total ? (100 * sent) / total : 0;
      const left = rate > 0 && sent < total && now - beganAt > 1500 ? `, ${span((total - sent) / rate)} left` : "";
      state.textContent = `${bytes(sent)} of ${bytes(total)}${left}`;
    },
    onSuccess() {
      runs = false;
      item.classList.add("upload--done");
      bar.value = 100;
      state.textContent = "received; being unpacked";
      pause.remove();
      cancel.remove();
      if (dataset) {
        const link = document.createElement("a");
        link.href = `${root.dataset.datasets}${dataset.split("/")[0]}/`;
        link.className = "button button--small";
        link.textContent = "Open the dataset";
        part(".upload__head").append(link);
      }
      status.textContent = `${file.name} is received.`;
      document.body.dispatchEvent(new CustomEvent("datasets-changed"));
      setTimeout(() => document.body.dispatchEvent(new CustomEvent("datasets-changed")), 4000);
    },
    /** @param {any} error */
    onError(error) {
      runs = false;
      item.classList.add("upload--failed");
      state.textContent = reasonOf(error);
      status.textContent = `${file.name}: ${state.textContent}`;
      setPause(false);
    },
  });

  /** @param {boolean} running */
  function setPause(running) {
    const words = pause.querySelector("span");
    if (words) words.textContent = running ? "Pause" : "Resume";
    pause.setAttribute("aria-label", `${running ? "Pause" : "Resume"} ${file.name}`);
  }

  function go() {
    runs = true;
    beganAt = 0;
    item.classList.remove("upload--failed");
    setPause(true);
    upload.start();
  }

  pause.addEventListener("click", () => {
    if (!runs) {
      go();
      return;
    }
    runs = false;
    upload.abort();
    setPause(false);
    state.textContent = `paused, ${state.textContent}`;
  });
  cancel.addEventListener("click", async () => {
    runs = false;
    await upload.abort(true).catch(() => {});
    item.remove();
    status.textContent = `${file.name} is cancelled.`;
    input.focus();
  });

  state.textContent = "looking for an earlier try";
  upload.findPreviousUploads().then((/** @type {any[]} */ earlier) => {
    // The browser remembers what was begun with this very file: go on from there.
    if (earlier.length) upload.resumeFromPreviousUpload(earlier[0]);
    go();
  });
}

if (root) {
  input.addEventListener("change", () => {
    for (const file of input.files ?? []) start(file);
    input.value = "";
  });
  for (const kind of ["dragenter", "dragover"]) {
    drop.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.add("is-over");
    });
  }
  for (const kind of ["dragleave", "drop"]) drop.addEventListener(kind, () => drop.classList.remove("is-over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    for (const file of /** @type {DragEvent} */ (event).dataTransfer?.files ?? []) start(file);
  });
  window.addEventListener("beforeunload", (event) => {
    if (list.querySelector(".upload:not(.upload--done, .upload--failed)")) event.preventDefault();
  });
}
