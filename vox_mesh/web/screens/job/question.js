/** What a job asks before it can go on, and the form for the answer. */
import { html, useState } from "../../vendor.js";
import { get, segment, send, words } from "../../app/api.js";
import { may } from "../../app/session.js";
import { useLive } from "../../app/state.js";
import { Text, Line } from "../../parts/text.js";
import { Time } from "../../parts/time.js";
import { toast } from "../../parts/toast.js";

/** @param {{job: any, reload: () => void}} props */
export function Question({ job, reload }) {
  const asked = useLive((signal) => get("/v1/jobs/questions", {}, { signal }), [], job.last_op);
  const question = asked.value?.find((/** @type {any} */ each) => each.job_id === job.job_id);
  if (!question) return null;
  return html`<section class="panel job-question stack" aria-labelledby="job-question">
    <h2 id="job-question">It waits for an answer</h2>
    <p><${Text} text=${question.text} /></p>
    <p class="quiet small"><${Line} text=${question.asked_by} max=${60} /> asked <${Time} ms=${question.asked_ms} />${question.expires_ms && html`; without an answer it is aborted <${Time} ms=${question.expires_ms} />`}</p>
    ${may("answer_question") && html`<${AnswerForm} question=${question} answered=${reload} key=${question.question_id} />`}
  </section>`;
}

/** @param {{question: any, answered: () => void}} props */
function AnswerForm({ question, answered }) {
  const [problem, setProblem] = useState("");
  const [isBusy, setBusy] = useState(false);
  const answer = async (/** @type {any} */ value) => {
    setBusy(true);
    try {
      await send("POST", `/v1/jobs/${segment(question.job_id)}/answer`, { answer: value, question_id: question.question_id });
      toast("Answered.");
      answered();
    } catch (error) {
      setProblem(words(error));
      setBusy(false);
    }
  };
  const submit = (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const text = String(new FormData(/** @type {HTMLFormElement} */ (event.currentTarget)).get("answer") ?? "");
    try {
      void answer(question.schema ? JSON.parse(text) : text);
    } catch {
      setProblem("The answer must be JSON that fits the schema");
    }
  };
  const isFailed = problem && html`<p class="problem" role="alert">${problem}</p>`;
  if (question.choices.length > 0) {
    return html`<div class="actions">${question.choices.map((/** @type {string} */ each) => html`<button key=${each} disabled=${isBusy} onClick=${() => void answer(each)}><${Line} text=${each} max=${80} /></button>`)}</div>${isFailed}`;
  }
  return html`<form class="stack" onSubmit=${submit}>
    <label class="field"><span>Answer${question.schema ? " (JSON)" : ""}</span><textarea name="answer" rows="3" required></textarea>
      ${question.schema && html`<small>It must fit <code><${Line} text=${question.schema} max=${300} /></code></small>`}</label>
    ${isFailed}
    <div class="actions"><button class="main-action" disabled=${isBusy}>Answer</button></div>
  </form>`;
}
