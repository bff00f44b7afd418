/** The event stream of the node: one for the whole page. It resumes where it was cut, so nothing is lost or doubled. */
import { signal } from "../vendor.js";
import { forget, headers } from "./session.js";

const SILENCE_MS = 40_000; // the node sends a comment every 15 s
const RETRY_MS = [250, 500, 1_000, 2_000, 4_000];

/** `live`, `connecting`, or `lost` when the node has not answered for a while. */
export const connection = signal("connecting");

/** @typedef {(name: string, data: any) => void} Listener */

export class EventStream {
  /** @param {Listener} listener */
  constructor(listener) {
    this.listener = listener;
    this.lastId = "";
    this.attempts = 0;
    this.ending = new AbortController();
    /** Wakes a stream that waits before it tries again. */
    this.wake = () => {};
  }

  /** Read until `end` is called. */
  async run() {
    while (!this.ending.signal.aborted) {
      try {
        await this.read();
      } catch {
        // It is told by the state of the connection.
      }
      if (this.ending.signal.aborted) return;
      connection.value = this.attempts > 1 ? "lost" : "connecting";
      await this.rest(RETRY_MS[Math.min(this.attempts, RETRY_MS.length - 1)] ?? 4_000);
      this.attempts += 1;
    }
  }

  end() {
    this.ending.abort();
    this.wake();
  }

  /** @param {number} ms */
  rest(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.wake = () => {
        clearTimeout(timer);
        resolve(undefined);
      };
    });
  }

  async read() {
    const cut = new AbortController();
    const silence = watch(cut);
    /** @type {Record<string, string>} */
    const resume = this.lastId ? { "Last-Event-ID": this.lastId } : {};
    try {
      const signal = AbortSignal.any([this.ending.signal, cut.signal]);
      const response = await fetch("/v1/events", { headers: { ...headers(), ...resume }, cache: "no-store", signal });
      if (response.status === 401) return this.leave();
      if (!response.ok || !response.body) throw new Error(`The node answered with ${response.status}`);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        silence.heard();
        const blocks = (rest + value).split("\n\n");
        rest = blocks.pop() ?? "";
        blocks.forEach((block) => this.dispatch(block));
      }
    } finally {
      silence.stop();
      cut.abort();
    }
  }

  leave() {
    this.ending.abort();
    forget("The session has ended.");
  }

  /** @param {string} block */
  dispatch(block) {
    let name = "";
    let data = "";
    for (const line of block.split("\n")) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("data: ")) data = line.slice(6);
      else if (line.startsWith("id: ")) this.lastId = line.slice(4);
    }
    this.attempts = 0;
    if (connection.value !== "live") connection.value = "live";
    if (name) this.listener(name, data ? JSON.parse(data) : null);
  }
}

/** Cut the connection when nothing is heard for too long.
 * @param {AbortController} cut */
function watch(cut) {
  let timer = setTimeout(() => cut.abort(), SILENCE_MS);
  return {
    heard() {
      clearTimeout(timer);
      timer = setTimeout(() => cut.abort(), SILENCE_MS);
    },
    stop() {
      clearTimeout(timer);
    },
  };
}
