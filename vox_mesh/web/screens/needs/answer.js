/** The answer to a question of a job: a choice, a text, or what its schema asks for. */
import { html, useRef } from "../../vendor.js";
import { segment, send } from "../../app/api.js";
import { may } from "../../app/session.js";
import { Act } from "../../parts/button.js";
import { Json, Line, Text } from "../../parts/text.js";
import { Time } from "../../parts/time.js";

const MAX_BUTTONS = 6;

/** @typedef {{text: string, value: any}} Choice */

/** @param {{more: Record<string, any>, title: string, done: () => void}} props
 * `more`: the question; `title`: what is shown of its text already. */
export function Answer({ more, title, done }) {
  const { text, job_id: job, question_id, expires_ms: expires } = more;
  const answer = async (/** @type {any} */ value) => {
    await send("POST", `/v1/jobs/${segment(job)}/answer`, { answer: value, question_id });
    done();
  };
  const choices = choicesOf(more);
  const rest = String(text ?? "").slice(title.length).trim();
  return html`${rest && html`<p class="needs-question"><${Text} text=${rest} max=${600} /></p>`}
    ${expires && html`<p class="small quiet">The job is aborted without an answer <${Time} ms=${expires} />.</p>`}
    ${may("answer_question") && (choices ? html`<${Chosen} choices=${choices} answer=${answer} title=${title} />` : html`<${Written} schema=${more.schema} answer=${answer} title=${title} />`)}`;
}

/** @param {Record<string, any>} more @returns {Choice[] | null} */
function choicesOf({ choices, schema }) {
  if (choices?.length > 0) return choices.map((/** @type {string} */ each) => ({ text: each, value: each }));
  if (schema?.enum?.length > 0) return schema.enum.map((/** @type {any} */ each) => ({ text: typeof each === "string" ? each : JSON.stringify(each), value: each }));
  return schema?.type === "boolean" ? [{ text: "Yes", value: true }, { text: "No", value: false }] : null;
}

/** @param {{choices: Choice[], answer: (value: any) => Promise<void>, title: string}} props */
function Chosen({ choices, answer, title }) {
  const select = useRef(/** @type {HTMLSelectElement | null} */ (null));
  const label = `Answer to: ${title.slice(0, 120)}`;
  if (choices.length <= MAX_BUTTONS) {
    return html`<div class="actions" role="group" aria-label=${label}>
      ${choices.map((each) => html`<${Act} key=${each.text} run=${() => answer(each.value)} done="Answered."><${Line} text=${each.text} max=${80} /><//>`)}
    </div>`;
  }
  return html`<div class="actions">
    <select ref=${select} aria-label=${label}>${choices.map((each, at) => html`<option value=${at} key=${at}>${each.text.slice(0, 200)}</option>`)}</select>
    <${Act} class="main-action" run=${() => answer(choices[Number(select.current?.value ?? 0)]?.value)} done="Answered.">Answer<//>
  </div>`;
}

/** @param {{schema: any, answer: (value: any) => Promise<void>, title: string}} props */
function Written({ schema, answer, title }) {
  const area = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const isText = !schema || !schema.type || schema.type === "string";
  const run = async () => {
    const text = area.current?.value.trim() ?? "";
    if (text === "") throw new Error("Write an answer first.");
    await answer(isText ? text : parsed(text));
  };
  return html`${!isText && html`<details class="small"><summary>The answer must fit a schema</summary><${Json} value=${schema} /></details>`}
    <div class="needs-write">
      <textarea ref=${area} rows="1" aria-label=${`${isText ? "Answer" : "Answer as JSON"} to: ${title.slice(0, 120)}`} placeholder=${isText ? "Your answer" : "Your answer, as JSON"}></textarea>
      <${Act} class="main-action" run=${run} done="Answered.">Answer<//>
    </div>`;
}

/** @param {string} text */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error('The answer must be JSON, such as 12 or {"a": 1}.');
  }
}
