/** The command palette and the help. */
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor.js";
import { Icon } from "../parts/icon.js";
import { Line } from "../parts/text.js";
import { toast } from "../parts/toast.js";
import { abort, retryJob } from "../screens/job/actions.js";
import { breakLock } from "../screens/locks/break.js";
import { get, segment, words } from "./api.js";
import { KEYS, closeOverlay, overlay } from "./keys.js";
import { go, to } from "./router.js";
import { SCREENS } from "./screens.js";
import { may, signOut } from "./session.js";
import { nextTheme } from "./theme.js";

const PAUSE_MS = 120;
/** Of how many things that were found there are actions. */
const MAX_ACTED = 4;
/** The most characters that the node looks for. */
const MAX_TEXT = 128;

/** @typedef {{sort: string, id: string, title: string, detail: string | null}} Found */

/** @typedef {{id: string, title: string, detail: string, icon: string, run: () => void}} Choice */

/** @typedef {{text: string, choices: Choice[], problem: string}} Findings What was found for a text. */

/** Where things of each sort are shown.
 * @type {Record<string, {icon: string, href: (id: string) => string}>} */
const PLACES = {
  job: { icon: "jobs", href: (id) => to("job", id) },
  node: { icon: "fleet", href: (id) => to("fleet", "", { node: id }) },
  agent: { icon: "fleet", href: (id) => to("agent", id) },
  lock: { icon: "locks", href: (id) => to("locks", "", { key: id }) },
  thread: { icon: "messages", href: (id) => to("messages", id) },
  kind: { icon: "jobs", href: (id) => to("jobs", "", { kind: id }) },
  conflict: { icon: "conflicts", href: (id) => to("conflicts", id) },
};

/** What can be done from anywhere, if its operation may be called.
 * @type {(Choice & {needs?: string})[]} */
const FIXED = [
  ...SCREENS.map((each) => ({ id: each.name, title: each.title, detail: `g ${each.key}`, icon: each.name, run: () => go(to(each.name)) })),
  { id: "failed", title: "Failed jobs", detail: "filter", icon: "jobs", run: () => go(to("jobs", "", { state: "failed" })) },
  { id: "running", title: "Running jobs", detail: "filter", icon: "jobs", run: () => go(to("jobs", "", { state: "running" })) },
  { id: "write", needs: "send_message", title: "Write a message", detail: "action", icon: "messages", run: () => go(to("messages", "", { write: "1" })) },
  { id: "schedule", needs: "schedule_jobs", title: "Schedule a job", detail: "action", icon: "jobs", run: () => go(to("jobs", "", { new: "1" })) },
  { id: "theme", title: "Change between light and dark", detail: "action", icon: "sun", run: nextTheme },
  { id: "out", title: "Sign out", detail: "action", icon: "out", run: () => void signOut() },
];

export function Overlays() {
  const opening = overlay.value;
  if (!opening) return null;
  return html`<${opening.kind === "palette" ? Palette : Help} opening=${opening} key=${opening} />`;
}

/** A dialog that closes with Escape or a click beside it. Its end may come after another has been opened.
 * @param {{label: string, opening: import("./keys.js").Opening, children?: any}} props */
function Overlay({ label, opening, children }) {
  const element = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => element.current?.showModal(), []);
  const close = () => overlay.value === opening && closeOverlay();
  const click = (/** @type {MouseEvent} */ event) => event.target === element.current && close();
  return html`<dialog ref=${element} class=${opening.kind} aria-label=${label} onClose=${close} onClick=${click}>${children}</dialog>`;
}

/** @param {{opening: import("./keys.js").Opening}} props */
function Help({ opening }) {
  return html`<${Overlay} label="Keys" opening=${opening}>
    <div class="inside">
      <h2>Keys</h2>
      <div class="keys">${KEYS.map(([key, text]) => html`<kbd>${key}</kbd><span>${text}</span>`)}</div>
      <div class="actions"><button onClick=${closeOverlay}>Close</button></div>
    </div>
  <//>`;
}

/** @param {{opening: import("./keys.js").Opening}} props */
function Palette({ opening }) {
  const [text, setText] = useState("");
  const [found, setFound] = useState(/** @type {Findings} */ ({ text: "", choices: [], problem: "" }));
  const [at, setAt] = useState(0);
  const [isEntered, setEntered] = useState(false);
  const wanted = text.trim();
  const isFresh = found.text === wanted;
  useEffect(() => {
    const ending = new AbortController();
    const timer = setTimeout(async () => {
      const findings = await find(wanted, ending.signal);
      if (!ending.signal.aborted) setFound(findings);
    }, PAUSE_MS);
    return () => {
      clearTimeout(timer);
      ending.abort();
    };
  }, [wanted]);
  const small = wanted.toLowerCase();
  const fixed = FIXED.filter((each) => each.title.toLowerCase().includes(small) && (!each.needs || may(each.needs))).slice(0, small ? 6 : 20);
  const choices = [...fixed, ...found.choices];
  const choose = (/** @type {Choice | undefined} */ choice) => {
    if (!choice) return;
    // Closed before it is taken away: so the keyboard goes back to where it was, or to where the choice leads.
    /** @type {HTMLDialogElement | null} */ (document.querySelector("dialog.palette"))?.close();
    closeOverlay();
    choice.run();
  };
  useEffect(() => {
    if (isEntered && isFresh) choose(choices[at]);
    if (isFresh) setEntered(false);
  }, [isEntered, isFresh]);
  useLayoutEffect(() => document.getElementById(`choice-${at}`)?.scrollIntoView({ block: "nearest" }), [at]);
  const press = (/** @type {KeyboardEvent} */ event) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    // What is listed may be for a text that was typed before: then the choice waits for what is found now.
    if (event.key === "Enter" && (isFresh || at < fixed.length)) choose(choices[at]);
    else if (event.key === "Enter") setEntered(true);
    if (!step) return;
    event.preventDefault();
    setAt((at + step + choices.length) % Math.max(1, choices.length));
  };
  const type = (/** @type {InputEvent} */ event) => {
    setText(/** @type {HTMLInputElement} */ (event.currentTarget).value);
    setAt(0);
    setEntered(false);
  };
  return html`<${Overlay} label="Find or do" opening=${opening}>
    <input
      value=${text}
      onInput=${type}
      onKeyDown=${press}
      role="combobox"
      aria-label="Find or do"
      aria-expanded="true"
      aria-controls="choices"
      aria-activedescendant=${choices[at] ? `choice-${at}` : undefined}
      placeholder="Find a job, node, agent or lock…"
      autocomplete="off"
    />
    <ul id="choices" role="listbox" aria-label="Choices">
      ${choices.map(
        (each, index) => html`<li id=${`choice-${index}`} role="option" key=${each.id} aria-selected=${index === at ? "true" : "false"} onClick=${() => choose(each)}>
          <${Icon} name=${each.icon} /><${Line} text=${each.title} max=${80} /><span class="quiet">${each.detail}</span>
        </li>`,
      )}
    </ul>
    ${found.problem && html`<p class="problem" role="alert">${found.problem}</p>`}
    ${choices.length === 0 && !found.problem && html`<p class="boot" role="status">${isFresh ? "Nothing found." : "Searching…"}</p>`}
  <//>`;
}

/** Return what can be done with a thing that was found, if the person may.
 * @param {Found} found @returns {Choice[]} */
function actionOf({ sort, id, title, detail }) {
  const act = (/** @type {string} */ needs, /** @type {string} */ label, /** @type {string} */ icon, /** @type {() => void} */ run) =>
    may(needs) ? [{ id: `act ${sort} ${id}`, title: label, detail: "action", icon, run }] : [];
  const path = `/v1/jobs/${segment(id)}`;
  if (sort === "agent") return act("send_message", `Write to ${title}`, "messages", () => go(to("messages", "", { write: "1", to: id })));
  if (sort === "lock") return act("break_lock", `Break the lock on ${title}…`, "locks", () => void breakLock({ lock_key: id, holder_agent: detail ?? "" }));
  if (sort !== "job") return [];
  return ["pending", "claimed", "running"].includes(detail ?? "")
    ? act("abort_job", `Abort ${title} ${id.slice(0, 8)}…`, "cross", () => void abort(path))
    : act("retry_job", `Retry ${title} ${id.slice(0, 8)}`, "retry", () => void retryJob(path).catch((error) => toast(words(error), { isBad: true })));
}

/** @param {string} text @param {AbortSignal} signal @returns {Promise<Findings>} */
async function find(text, signal) {
  if (text.length < 2) return { text, choices: [], problem: "" };
  try {
    const { items } = await get("/v1/find", { q: text.slice(0, MAX_TEXT) }, { signal });
    const places = items.flatMap((/** @type {Found} */ each) => {
      const place = PLACES[each.sort];
      if (!place) return [];
      const detail = each.sort === "agent" ? "agent" : `${each.sort} ${each.sort === "lock" ? "of " : ""}${each.detail ?? ""}`;
      return [{ id: `${each.sort} ${each.id}`, title: each.title, detail, icon: place.icon, run: () => go(place.href(each.id)) }];
    });
    return { text, choices: [...places, ...items.slice(0, MAX_ACTED).flatMap(actionOf)], problem: "" };
  } catch (error) {
    return { text, choices: [], problem: words(error) };
  }
}
