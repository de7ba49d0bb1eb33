"use strict";
// Before anything is painted: the theme that was chosen, or the system's. No module: those run later.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const chosen = localStorage.getItem("theme");
    document.documentElement.dataset.theme = chosen ?? (dark.matches ? "dark" : "light");
    document.dispatchEvent(new Event("themechange"));
  };
  dark.addEventListener("change", apply);
  addEventListener("storage", apply);
  document.addEventListener("themechosen", apply);
  apply();
})();
