/** What a person can do with a job. */
import { html } from "../../vendor.js";
import { segment, send } from "../../app/api.js";
import { go, to } from "../../app/router.js";
import { Act } from "../../parts/button.js";
import { ask } from "../../parts/dialog.js";
import { toast } from "../../parts/toast.js";
import { isOpen } from "../jobs/model.js";

const HELD = ["claimed", "running"];

/** @param {{job: any, reload: () => void}} props */
export function Actions({ job, reload }) {
  const path = `/v1/jobs/${segment(job.job_id)}`;
  const retry = () => retryJob(path);
  return html`
    ${HELD.includes(job.state) && html`<${Act} needs="yield_job" run=${() => giveBack(path).finally(reload)}>Yield…<//>`}
    ${isOpen(job) && html`<${Act} needs="abort_job" class="danger" run=${() => abort(path).finally(reload)}>Abort…<//>`}
    ${!isOpen(job) && html`<${Act} needs="retry_job" class=${job.state === "succeeded" ? "" : "main-action"} run=${retry}>Retry<//>`}`;
}

/** @param {string} path */
export async function retryJob(path) {
  const again = await send("POST", `${path}/retry`, {});
  toast(again.is_new ? "Retried as a new job." : "It was retried before: this is the new job.");
  go(to("job", again.job_id));
}

/** @param {string} path */
export function abort(path) {
  return ask({
    title: "Abort this job?",
    text: "Its worker stops, and jobs that wait for its success fail.",
    fields: [{ name: "reason", label: "Reason", hint: "The op log keeps it." }],
    action: "Abort",
    isDanger: true,
    run: ({ reason }) => send("POST", `${path}/abort`, reason ? { reason } : {}),
  });
}

/** @param {string} path */
function giveBack(path) {
  return ask({
    title: "Return this job to the queue?",
    text: "Its worker stops. It does not count as a failure, and any worker may claim it again.",
    fields: [
      { name: "delay", label: "Not before", value: "0s", hint: "How long it waits, for example 30s, 10m or 1h." },
      { name: "reason", label: "Reason", hint: "The op log keeps it." },
    ],
    action: "Yield",
    run: ({ delay, reason }) => send("POST", `${path}/yield`, { delay: delay || "0s", ...(reason ? { reason } : {}) }),
  });
}
