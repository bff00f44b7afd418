/** The end of a job's log: read as it grows, and bounded. */
import { signal } from "../../vendor.js";
import { get, segment } from "../../app/api.js";

const MAX_LINES = 2_000;
const MAX_CHARACTERS = 1_000_000;
const MAX_LINE = 4_000;
const WAIT_S = 20;
const RETRY_MS = 2_000;
const FIRST = 64;

/** @typedef {{key: string, stream: string, text: string, attempt: number}} LogLine */

export class LogTail {
  /** @param {string} jobId */
  constructor(jobId) {
    this.path = `/v1/jobs/${segment(jobId)}/logs`;
    /** @type {import("../../vendor.js").Signal<LogLine[]>} */
    this.lines = signal([]);
    /** `reading`, `paused`, `ended`, or what is wrong. */
    this.state = signal("reading");
    this.isCut = signal(false);
    /** @type {string | null} */
    this.cursor = null;
    this.isFirst = true;
    this.characters = 0;
    this.ending = new AbortController();
  }

  /** Read on until the job has ended, or `pause` is called. */
  async run() {
    this.ending = new AbortController();
    const { signal: ending } = this.ending;
    this.state.value = "reading";
    while (!ending.aborted) {
      try {
        if (await this.read(ending)) {
          this.state.value = "ended";
          return;
        }
      } catch (error) {
        if (ending.aborted) return;
        this.state.value = error instanceof Error ? error.message : String(error);
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    }
  }

  pause() {
    this.ending.abort();
    this.state.value = "paused";
  }

  /** Read a page; return whether it was the last one.
   * @param {AbortSignal} ending */
  async read(ending) {
    const place = this.cursor ? { cursor: this.cursor, wait: WAIT_S } : { tail: FIRST };
    const page = await get(this.path, place, { signal: ending, timeoutMs: (WAIT_S + 15) * 1_000 });
    if (ending.aborted) return false;
    this.state.value = "reading";
    if (this.isFirst && page.items[0]?.n > 1) this.isCut.value = true;
    this.isFirst = false;
    this.add(page.items);
    if (page.next !== null) this.cursor = page.next;
    return page.next === null;
  }

  /** @param {{n: number, claim_token: number, stream: string, text: string}[]} pieces */
  add(pieces) {
    if (pieces.length === 0) return;
    const added = pieces.flatMap(({ n, claim_token: attempt, stream, text }) =>
      String(text).replace(/\n$/, "").split("\n").map((line, place) => ({ key: `${n}.${place}`, stream, attempt, text: line.slice(0, MAX_LINE + 1) })));
    const lines = [...this.lines.value, ...added];
    this.characters += added.reduce((sum, each) => sum + each.text.length, 0);
    let first = Math.max(0, lines.length - MAX_LINES);
    for (let place = 0; place < first; place += 1) this.characters -= lines[place]?.text.length ?? 0;
    while (this.characters > MAX_CHARACTERS && first < lines.length) this.characters -= lines[first++]?.text.length ?? 0;
    if (first > 0) this.isCut.value = true;
    this.lines.value = first > 0 ? lines.slice(first) : lines;
  }
}
