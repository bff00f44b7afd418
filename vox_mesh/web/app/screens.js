/** All screens: their names, keys and modules, which are read when they are first opened. */

/** @typedef {{name: string, title: string, key: string, load: () => Promise<{default: () => any}>}} Screen */

/** Those in the navigation, in its order. `g` and then the key opens one.
 * @type {Screen[]} */
export const SCREENS = [
  { name: "needs", title: "Needs you", key: "h", load: () => import("../screens/needs.js") },
  { name: "fleet", title: "Fleet", key: "f", load: () => import("../screens/fleet.js") },
  { name: "jobs", title: "Jobs", key: "j", load: () => import("../screens/jobs.js") },
  { name: "locks", title: "Locks", key: "l", load: () => import("../screens/locks.js") },
  { name: "messages", title: "Messages", key: "m", load: () => import("../screens/messages.js") },
  { name: "conflicts", title: "Conflicts", key: "c", load: () => import("../screens/conflicts.js") },
  { name: "rhythm", title: "Rhythm", key: "r", load: () => import("../screens/rhythm.js") },
  { name: "costs", title: "Costs", key: "o", load: () => import("../screens/costs.js") },
  { name: "log", title: "Log", key: "e", load: () => import("../screens/log.js") },
  { name: "health", title: "Health", key: "s", load: () => import("../screens/health.js") },
];

/** Those of a single thing.
 * @type {Record<string, Screen["load"]>} */
export const DETAILS = {
  job: () => import("../screens/job.js"),
  agent: () => import("../screens/agent.js"),
  approval: () => import("../screens/approval.js"),
};

/** Return what loads a screen, or `undefined` if there is none of this name.
 * @param {string} name */
export function loaderOf(name) {
  return SCREENS.find((each) => each.name === name)?.load ?? (Object.hasOwn(DETAILS, name) ? DETAILS[name] : undefined);
}
