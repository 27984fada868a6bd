// @ts-check
/** Sections become tabs; without scripts they stay sections, one below the other. */

/** @param {HTMLElement} root */
function build(root) {
  const panels = /** @type {HTMLElement[]} */ ([...root.querySelectorAll(":scope > [data-tab]")]);
  const list = document.createElement("div");
  list.className = "tabs";
  list.setAttribute("role", "tablist");
  list.setAttribute("aria-label", root.getAttribute("aria-label") ?? "");
  root.removeAttribute("aria-label");
  const tabs = panels.map((panel) => {
    const tab = document.createElement("button");
    tab.type = "button";
    tab.id = `tab-${panel.id}`;
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", panel.id);
    tab.textContent = panel.dataset.tab ?? "";
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", tab.id);
    list.append(tab);
    return tab;
  });
  /** @param {number} chosen */
  const show = (chosen, focus = false) => {
    tabs.forEach((tab, index) => {
      const is = index === chosen;
      tab.setAttribute("aria-selected", String(is));
      tab.tabIndex = is ? 0 : -1;
      panels[index].hidden = !is;
    });
    if (focus) tabs[chosen].focus();
    root.dispatchEvent(new CustomEvent("tabshown", { detail: panels[chosen].id, bubbles: true }));
  };
  list.addEventListener("click", (event) => {
    const index = tabs.indexOf(/** @type {HTMLButtonElement} */ (event.target));
    if (index < 0) return;
    show(index);
    history.replaceState(null, "", index ? `#${panels[index].id}` : location.pathname + location.search);
  });
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const current = tabs.findIndex((tab) => tab.getAttribute("aria-selected") === "true");
    if (step) show((current + step + tabs.length) % tabs.length, true);
    else if (event.key === "Home") show(0, true);
    else if (event.key === "End") show(tabs.length - 1, true);
    else return;
    event.preventDefault();
  });
  root.prepend(list);
  // An address that names a line of the log, or nothing at all, means the first.
  const fromHash = () => show(Math.max(0, panels.findIndex((panel) => `#${panel.id}` === location.hash)));
  window.addEventListener("hashchange", fromHash);
  fromHash();
}

for (const root of document.querySelectorAll("[data-tabs]")) build(/** @type {HTMLElement} */ (root));
