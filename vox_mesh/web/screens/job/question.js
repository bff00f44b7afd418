/** What a job asks before it can go on, and the form for the answer. */
import { html } from "../../vendor.js";
import { get } from "../../app/api.js";
import { useLive } from "../../app/state.js";
import { Text, Line } from "../../parts/text.js";
import { Time } from "../../parts/time.js";
import { Answer } from "../needs/answer.js";

/** @param {{job: any, reload: () => void}} props */
export function Question({ job, reload }) {
  const asked = useLive((signal) => get("/v1/jobs/questions", {}, { signal }), [], job.last_op);
  const question = asked.value?.find((/** @type {any} */ each) => each.job_id === job.job_id);
  if (!question) return null;
  return html`<section class="panel job-question needs-text stack" aria-labelledby="job-question">
    <h2 id="job-question">It waits for an answer</h2>
    <p><${Text} text=${question.text} /></p>
    <p class="quiet small"><${Line} text=${question.asked_by} max=${60} /> asked <${Time} ms=${question.asked_ms} /></p>
    <${Answer} more=${question} title=${question.text} done=${reload} key=${question.question_id} />
  </section>`;
}
