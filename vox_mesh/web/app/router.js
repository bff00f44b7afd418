/** The address of the page: every screen and filter has one. */
import { h, signal } from "../vendor.js";

const ROOT = "/ui/";

/** @typedef {{screen: string, id: string, query: URLSearchParams}} Route */

/** @returns {Route} */
function current() {
  const [screen = "", ...rest] = location.pathname.slice(ROOT.length).split("/");
  return { screen: screen || "needs", id: decoded(rest.join("/")), query: new URLSearchParams(location.search) };
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export const route = signal(current());

/** Return the address of a screen.
 * @param {string} screen @param {string} [id] @param {Record<string, any>} [query] */
export function to(screen, id = "", query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  const path = ROOT + (screen === "needs" ? "" : screen) + (id ? `/${encodeURIComponent(id)}` : "");
  return text ? `${path}?${text}` : path;
}

/** Go to an address.
 * @param {string} url @param {{replace?: boolean}} [options] */
export function go(url, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", url);
  const before = route.value.screen + route.value.id;
  route.value = current();
  if (route.value.screen + route.value.id !== before) {
    scrollTo(0, 0);
    document.getElementById("main")?.focus({ preventScroll: true });
  }
}

/** Change filters in the address; empty ones are left out.
 * @param {Record<string, any>} changes */
export function refine(changes) {
  const query = { ...Object.fromEntries(route.value.query), ...changes };
  go(to(route.value.screen, route.value.id, query), { replace: true });
}

addEventListener("popstate", () => {
  route.value = current();
});

/** A link within the console.
 * @param {Record<string, any>} props */
export function Link({ href, children, ...rest }) {
  return h("a", { href, onClick: follow, ...rest }, children);
}

/** @param {MouseEvent} event */
function follow(event) {
  if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  go(/** @type {HTMLAnchorElement} */ (event.currentTarget).href);
}
