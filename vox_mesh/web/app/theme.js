/** Light or dark: as the system has it, or as the person chose. */
const KEY = "vox-mesh-theme";

export function restoreTheme() {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("vox-theme")));
  apply(localStorage.getItem(KEY) ?? "");
}

/** Change to the other one. */
export function nextTheme() {
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme || (isDark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  localStorage.setItem(KEY, next);
  apply(next);
}

/** @param {string} theme */
function apply(theme) {
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  dispatchEvent(new Event("vox-theme"));
}
