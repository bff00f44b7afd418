/** The state of the mesh as the stream tells it, and reads that are repeated when it changes. */
import { batch, signal, useCallback, useEffect, useSignal } from "../vendor.js";
import { EventStream } from "./stream.js";

/** Parts that the stream sends completely, first all of them and then each when it changes. */
const PARTS = /** @type {const} */ ([
  "nodes", "agents", "locks", "messages", "conflicts", "approvals", "report", "attention", "beats", "status",
]);

/** @type {Record<string, import("../vendor.js").Signal<any>>} */
export const mesh = Object.fromEntries(PARTS.map((name) => [name, signal(undefined)]));

/** The topics of entries of the log. */
export const LOG = ["op", "job", "role", "conflict", "approval", "tempo", "phrase"];

/** @type {Set<{topics: Set<string>, heard: (name: string, data: any) => void}>} */
const listeners = new Set();

/** Call a function with each event of some topics; return what ends that. `reset` comes after each reconnection.
 * @param {string[]} topics @param {(name: string, data: any) => void} heard */
export function listen(topics, heard) {
  const listener = { topics: new Set(topics), heard };
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Start to follow the mesh; return what ends it. */
export function follow() {
  const stream = new EventStream((name, data) => {
    if (name === "reset") {
      batch(() => Object.entries(data).forEach(([part, value]) => set(part, value)));
    } else {
      set(name, data);
    }
    for (const each of [...listeners]) {
      if (name === "reset" || each.topics.has(name)) each.heard(name, data);
    }
  });
  void stream.run();
  return { end: () => stream.end(), wake: () => stream.wake() };
}

/** @param {string} part @param {any} value */
function set(part, value) {
  const held = mesh[part];
  if (held && part !== "status") held.value = value;
}

const GAP_MS = 40;
const MAX_GAP_MS = 2_000;
const SLOW_MS = 500;
const SLOW_GAP_MS = 20_000;

/**
 * Read now, and again after each event of the topics: at once after a quiet time, then at a distance that grows
 * with what a read takes. `key` names what is read: another key begins anew.
 *
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} load
 * @param {string[]} topics
 * @param {string} [key]
 * @returns {{value: T | undefined, problem: unknown, reload: () => void}}
 */
export function useLive(load, topics, key = "") {
  const found = useSignal(/** @type {{key: string, value: T | undefined, problem: unknown}} */ ({ key, value: undefined, problem: null }));
  const again = useSignal(() => {});
  useEffect(() => {
    const ending = new AbortController();
    const reading = repeater(async () => {
      try {
        const value = await load(ending.signal);
        if (!ending.signal.aborted) found.value = { key, value, problem: null };
      } catch (problem) {
        if (!ending.signal.aborted) found.value = { ...found.value, key, problem };
      }
    });
    again.value = reading.ask;
    reading.ask();
    const stop = listen(topics, reading.ask);
    return () => {
      ending.abort();
      reading.end();
      stop();
    };
  }, [key, topics.join()]);
  const now = found.value.key === key ? found.value : { value: undefined, problem: null };
  const reload = useCallback(() => again.value(), []);
  return { value: now.value, problem: now.problem, reload };
}

/** Run a task when asked: one at a time, and once more if asked meanwhile.
 * @param {() => Promise<void>} task */
export function repeater(task) {
  let timer = 0;
  let isWanted = false;
  let isRunning = false;
  let notBefore = 0;
  const run = async () => {
    timer = 0;
    isWanted = false;
    isRunning = true;
    const begun = performance.now();
    await task();
    const ended = performance.now();
    const took = ended - begun;
    // What takes long is work for the node, too: an open page asks for it a small part of the time.
    notBefore = ended + (took > SLOW_MS ? Math.min(SLOW_GAP_MS, 20 * took) : Math.min(MAX_GAP_MS, Math.max(GAP_MS, 3 * took)));
    isRunning = false;
    if (isWanted) plan();
  };
  const plan = () => {
    if (timer === 0) timer = setTimeout(run, Math.max(0, notBefore - performance.now()));
  };
  return {
    ask() {
      isWanted = true;
      if (!isRunning) plan();
    },
    end() {
      clearTimeout(timer);
      timer = -1;
    },
  };
}
