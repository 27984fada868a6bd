// @ts-check
/** The form for a job: an editor for the program, more rows, names that fill in by themselves. */

const form = /** @type {HTMLFormElement} */ (document.getElementById("job-form"));
const script = /** @type {HTMLTextAreaElement} */ (document.getElementById("id_script"));
const place = /** @type {HTMLElement} */ (document.getElementById("editor"));

/** Turn the text area into an editor; where that fails it stays a text area. */
async function startEditor() {
  const { createEditor } = await import("../vendor/editor.min.js");
  place.hidden = false;
  const { view } = createEditor({
    parent: place,
    doc: script.value,
    nonce: place.dataset.nonce || place.nonce,
    label: "Python program",
    onChange: (/** @type {string} */ text) => { script.value = text; },
  });
  view.contentDOM.addEventListener("beforeinput", (/** @type {InputEvent} */ event) => {
    // Typing over a selection, Chromium keeps the old look by an inline style, which the policy
    // refuses. Brackets and quotes are left to the editor: it puts them around the selection.
    const { data } = event;
    if (event.inputType !== "insertText" || event.isComposing || !data || "([{'\"".includes(data)) return;
    if (view.state.selection.main.empty) return;
    event.preventDefault();
    view.dispatch({ ...view.state.replaceSelection(data), userEvent: "input.type", scrollIntoView: true });
  });
  // Said outright, so that whoever scrolls by keyboard finds the way in.
  view.contentDOM.tabIndex = 0;
  script.hidden = true;
  document.getElementById("script-label")?.removeAttribute("for");
}

/** @param {string} name */
export function folderName(name) {
  return name.replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[-._]+|[-._]+$/g, "").slice(0, 64) || "data";
}

function wirePairs() {
  for (const button of form.querySelectorAll("[data-add-pair], [data-remove-pair]")) {
    /** @type {HTMLElement} */ (button).hidden = false;
  }
  form.addEventListener("click", (event) => {
    const target = /** @type {Element} */ (event.target);
    const add = target.closest("[data-add-pair]");
    if (add instanceof HTMLElement) {
      const list = form.querySelector(`[data-pairs="${add.dataset.addPair}"]`);
      const last = [...(list?.querySelectorAll("[data-pair]") ?? [])].at(-1);
      if (!list || !last) return;
      const fresh = /** @type {HTMLElement} */ (last.cloneNode(true));
      for (const input of fresh.querySelectorAll("input, select")) /** @type {HTMLInputElement} */ (input).value = "";
      fresh.querySelector(".field__hint")?.remove();
      list.append(fresh);
      /** @type {HTMLElement} */ (fresh.querySelector("input, select"))?.focus();
    }
    const remove = target.closest("[data-remove-pair]");
    if (remove) {
      const pair = remove.closest("[data-pair]");
      const list = pair?.parentElement;
      if (!pair || !list) return;
      if (list.querySelectorAll("[data-pair]").length > 1) pair.remove();
      else for (const input of pair.querySelectorAll("input, select")) /** @type {HTMLInputElement} */ (input).value = "";
      /** @type {HTMLElement} */ (list.querySelector("input, select"))?.focus();
    }
  });
  form.addEventListener("change", (event) => {
    const select = event.target;
    if (!(select instanceof HTMLSelectElement) || select.name !== "dataset_version") return;
    const name = /** @type {HTMLInputElement} */ (select.closest("[data-pair]")?.querySelector("[name=dataset_name]"));
    if (!name || (name.value && name.dataset.made !== name.value)) return;
    name.value = select.value ? folderName(select.selectedOptions[0].dataset.name ?? "") : "";
    name.dataset.made = name.value;
  });
}

if (form) {
  wirePairs();
  startEditor().catch((error) => {
    console.warn("the editor did not start", error);
    place.hidden = true;
    script.hidden = false;
  });
  form.querySelector("[data-edit-template]")?.addEventListener("click", (event) => {
    event.preventDefault();
    const editor = /** @type {HTMLInputElement} */ (form.querySelector("input[name=source][value=editor]"));
    editor.checked = true;
    editor.focus();
  });
  form.addEventListener("submit", () => {
    const button = /** @type {HTMLButtonElement} */ (document.getElementById("submit-job"));
    // Disabled only once the form is on its way; sent twice all the same, it makes one job.
    setTimeout(() => { button.disabled = true; button.textContent = "Submitting…"; });
  });
  window.addEventListener("pageshow", () => {
    const button = /** @type {HTMLButtonElement} */ (document.getElementById("submit-job"));
    button.disabled = false;
    button.textContent = "Submit the job";
  });
}
