/** The output and log of a job, live. It follows the end unless the person scrolls up or pauses it. */
import { html, useEffect, useLayoutEffect, useMemo, useRef } from "../../vendor.js";
import { Icon } from "../../parts/icon.js";
import { Text } from "../../parts/text.js";
import { isOpen } from "../jobs/model.js";
import { LogTail } from "./tail.js";

const NEAR_PX = 40;

/** @param {{job: any}} props */
export function Log({ job }) {
  const tail = useMemo(() => new LogTail(job.job_id), [job.job_id]);
  useEffect(() => {
    void tail.run();
    return () => tail.pause();
  }, [tail]);
  const state = tail.state.value;
  const isPaused = state === "paused";
  const lines = tail.lines.value;
  return html`<section class="panel" aria-labelledby="job-log">
    <div class="row job-log-head">
      <h2 id="job-log">Log</h2>
      <span class="quiet small" role="status">${words(state, job, lines.length)}</span>
      ${state !== "ended" && html`<button class="small" aria-pressed=${isPaused ? "true" : "false"} onClick=${() => (isPaused ? void tail.run() : tail.pause())}>
        <${Icon} name=${isPaused ? "half" : "pause"} />${isPaused ? "Go on" : "Pause"}
      </button>`}
    </div>
    ${tail.isCut.value && html`<p class="quiet small">Only the end is shown. All of it: <code>vox-mesh job logs ${job.job_id.slice(0, 12)}</code></p>`}
    ${lines.length > 0 && html`<${Lines} lines=${lines} />`}
  </section>`;
}

/** @param {string} state @param {any} job @param {number} count */
function words(state, job, count) {
  if (state === "ended") return count === 0 ? "It wrote nothing." : "complete";
  if (state === "paused") return "paused";
  if (state !== "reading") return state;
  return isOpen(job) ? (count === 0 ? "live: nothing yet" : "live") : "reading";
}

/** @param {{lines: import("./tail.js").LogLine[]}} props */
function Lines({ lines }) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const isAtEnd = useRef(true);
  const scrolled = () => {
    const { scrollTop = 0, scrollHeight = 0, clientHeight = 0 } = element.current ?? {};
    isAtEnd.current = scrollHeight - scrollTop - clientHeight < NEAR_PX;
  };
  useLayoutEffect(() => {
    if (isAtEnd.current && element.current) element.current.scrollTop = element.current.scrollHeight;
  }, [lines]);
  return html`<div class="job-log" ref=${element} onScroll=${scrolled} tabindex="0" role="log" aria-label="Log of the job">
    ${lines.map((line, place) => shown(line, place > 0 && lines[place - 1]?.attempt !== line.attempt))}
  </div>`;
}

/** What is drawn of each line, made once: an unchanged one is not compared again.
 * @type {WeakMap<import("./tail.js").LogLine, any>} */
const drawn = new WeakMap();

/** @param {import("./tail.js").LogLine} line @param {boolean} isNext whether another attempt begins here */
function shown(line, isNext) {
  const known = drawn.get(line);
  if (known) return known;
  const made = html`<div class=${`${line.stream === "stderr" ? "error" : ""} ${isNext ? "next" : ""}`} key=${line.key}><${Text} text=${line.text || " "} /></div>`;
  drawn.set(line, made);
  return made;
}
