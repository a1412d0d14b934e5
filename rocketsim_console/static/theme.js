// Sets the theme that the user has chosen, before the first paint. Without a choice, the system's theme is used.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* the browser allows no storage */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
