// @ts-check
// Chooses light or dark before anything is painted; a classic script, so that it runs first.
(() => {
  const key = "starling.theme";
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  /** @returns {string | null} */
  const stored = () => {
    try { return localStorage.getItem(key); } catch { return null; }
  };
  const apply = () => {
    const theme = stored() ?? (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    document.dispatchEvent(new CustomEvent("themechange", { detail: theme }));
  };
  apply();
  dark.addEventListener("change", apply);
  window.addEventListener("storage", (event) => { if (event.key === key) apply(); });
  document.addEventListener("click", (event) => {
    const target = /** @type {Element} */ (event.target);
    if (!target.closest("[data-theme-toggle]")) return;
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem(key, next); } catch { /* private window: it lasts for this page */ }
    document.documentElement.dataset.theme = next;
    document.dispatchEvent(new CustomEvent("themechange", { detail: next }));
  });
})();
