/** Icons and shapes, drawn with lines. They are decoration: the text beside them says the same. */
import { html } from "../vendor.js";

/** @type {Record<string, string>} */
const PATHS = {
  needs: "M12 3l9 16H3zM12 10v4M12 17v.01",
  fleet: "M4 5h16v5H4zM4 14h16v5H4zM8 7.5v.01M8 16.5v.01",
  jobs: "M4 6h16M4 12h16M4 18h10",
  locks: "M6 11h12v9H6zM9 11V7a3 3 0 0 1 6 0v4",
  messages: "M4 5h16v11H9l-5 4z",
  conflicts: "M6 4v6a4 4 0 0 0 4 4h8M18 10l4 4-4 4M6 20v-4",
  rhythm: "M3 12h4l3-8 4 16 3-8h4",
  costs: "M5 20V10M12 20V4M19 20v-7",
  log: "M6 3h9l4 4v14H6zM9 12h7M9 16h7",
  health: "M12 20s-8-5-8-11a4 4 0 0 1 8-1 4 4 0 0 1 8 1c0 6-8 11-8 11z",
  copy: "M9 9h11v11H9zM15 9V4H4v11h5",
  check: "M5 12l5 5 9-10",
  cross: "M6 6l12 12M18 6L6 18",
  search: "M10.5 4a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zM15.5 15.5L21 21",
  menu: "M4 6h16M4 12h16M4 18h16",
  plus: "M12 5v14M5 12h14",
  minus: "M5 12h14",
  fit: "M4 9V4h5M20 9V4h-5M4 15v5h5M20 15v5h-5",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.5 1.5M17.5 17.5L19 19M5 19l1.5-1.5M17.5 6.5L19 5",
  out: "M14 4h5v16h-5M4 12h11M11 8l4 4-4 4",
  retry: "M20 11a8 8 0 1 0-2 6M20 5v6h-6",
  ring: "M12 5a7 7 0 1 0 0 14 7 7 0 0 0 0-14z",
  half: "M12 5a7 7 0 1 0 0 14zM12 5a7 7 0 0 1 0 14",
  diamond: "M12 4l8 8-8 8-8-8z",
  pause: "M8 5v14M16 5v14",
  clock: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16zM12 8v4l3 2",
  question: "M9 9a3 3 0 1 1 4 3c-1 .5-1 1-1 2M12 18v.01",
};

/** @param {{name: string}} props */
export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d=${PATHS[name] ?? PATHS.ring} /></svg>`;
}
