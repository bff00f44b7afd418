/** What a person can do about each thing, in place. */
import { html } from "../../vendor.js";
import { get, segment, send } from "../../app/api.js";
import { keyed } from "../../app/once.js";
import { Link, to } from "../../app/router.js";
import { Act } from "../../parts/button.js";
import { ask } from "../../parts/dialog.js";
import { Bar } from "../../parts/page.js";
import { Id, Line } from "../../parts/text.js";
import { Time } from "../../parts/time.js";
import { Answer } from "./answer.js";
import { Asked, Difference } from "./details.js";

/** @typedef {import("./kinds.js").Item} Item */
/** @typedef {{item: Item, done: () => void}} Props `done`: it needs no one any more */

/** A reason that the op log keeps.
 * @type {import("../../parts/dialog.js").Field} */
const REASON = { name: "reason", label: "Reason", hint: "The op log keeps it, with your name." };

/** Return the name of an item for screen readers: many buttons have the same text.
 * @param {Item} item */
const name = ({ title, detail }) => [title, detail].filter(Boolean).join(", ").slice(0, 200);

/** @param {Props} props */
function Conflict({ item, done }) {
  const path = `/v1/conflicts/${segment(item.id)}/resolve`;
  const take = (/** @type {"left" | "right"} */ side) => () =>
    ask({
      title: side === "left" ? "Write the left side?" : "Keep the right side?",
      text: html`<${Difference} id=${item.id} side=${side} />`,
      fields: [REASON],
      action: side === "left" ? "Take left" : "Take right",
      isWide: true,
      run: async ({ reason }) => (await send("POST", path, { take: side, reason: reason || null }), done()),
    });
  return html`<${Link} class="button main-action" href=${to("conflicts", item.id)}>Compare and resolve<//>
    <${Act} needs="resolve_conflict" run=${take("left")} label=${`Take left: ${name(item)}`} done="Resolved: the left side is written.">Take left<//>
    <${Act} needs="resolve_conflict" run=${take("right")} label=${`Take right: ${name(item)}`} done="Resolved: the right side stays.">Take right<//>`;
}

/** @param {Props} props */
function Approval({ item, done }) {
  const decide = (/** @type {"approve" | "deny"} */ verb) => () =>
    ask({
      title: verb === "approve" ? "Approve this?" : "Deny this?",
      text: html`<${Asked} id=${item.id} />`,
      fields: [REASON],
      action: verb === "approve" ? "Approve" : "Deny",
      isDanger: verb === "deny",
      isWide: true,
      run: async ({ reason }) => (await send("POST", `/v1/approvals/${segment(item.id)}/${verb}`, { reason: reason ?? "" }), done()),
    });
  return html`<${Act} needs="approve" class="main-action" run=${decide("approve")} label=${`Approve: ${name(item)}`} done="Approved.">Approve<//>
    <${Act} needs="deny" class="danger" run=${decide("deny")} label=${`Deny: ${name(item)}`} done="Denied.">Deny<//>`;
}

/** @param {Props} props */
function FailedJob({ item, done }) {
  const retry = async () => (await send("POST", `/v1/jobs/${segment(item.id)}/retry`), done());
  return html`<${Act} needs="retry_job" class="main-action" run=${retry} label=${`Retry: ${name(item)}`} done="Scheduled again as a new job.">Retry<//>`;
}

/** @param {Props} props */
function DeadLetter({ item, done }) {
  const retry = async () => (await send("POST", `/v1/messages/${segment(item.id)}/retry`), done());
  return html`<${Act} needs="retry_message" class="main-action" run=${retry} label=${`Redeliver: ${name(item)}`} done="The message is redelivered.">Redeliver<//>
    <${Write} to=${item.more.sender_agent} thread=${item.more.thread_id} />`;
}

/** @param {Props} props */
function OverdueAck({ item }) {
  return html`<${Write} to=${item.more.receiver_agent} thread=${item.more.thread_id} isMain />`;
}

/** @param {Props} props */
function BrokenPromise({ item }) {
  const { helper, asker } = item.more;
  return html`${helper && html`<${Write} to=${helper} isMain />`}<${Write} to=${asker} isMain=${!helper} />`;
}

/** Write to an agent.
 * @param {{to: string, thread?: string | null, isMain?: boolean}} props */
function Write({ to: agent, thread, isMain }) {
  const write = () => {
    const keyOf = keyed();
    return ask({
      title: "Send a message",
      text: html`To <strong><${Line} text=${agent} max=${80} /></strong>, from you.`,
      fields: [{ name: "text", label: "Message", rows: 4, required: true }],
      action: "Send",
      run: ({ text }) => send("POST", "/v1/messages", { to: agent, payload: { text }, key: keyOf(text), ...(thread ? { thread } : {}) }),
    });
  };
  return html`<${Act} needs="send_message" class=${isMain ? "main-action" : ""} run=${write} done="Sent.">Message <${Line} text=${agent} max=${24} /><//>`;
}

/** The field of a budget for each resource. @type {Record<string, string>} */
const LIMITS = { beats: "max_bu", tokens: "max_tokens", input_tokens: "max_input_tokens", output_tokens: "max_output_tokens" };

/** @param {Props} props */
function Budget({ item, done }) {
  const { subject, resource, spent, most } = item.more;
  const [, currency] = String(resource).split(":");
  const more = 1.5 * Number(most);
  const raise = () =>
    ask({
      title: "Raise the limit",
      text: html`<${Line} text=${subject} max=${80} /> has used ${spent} of ${most} ${currency ?? resource}.`,
      fields: [{ name: "most", label: `New limit, in ${currency ?? resource}`, value: currency ? more.toFixed(2) : String(Math.ceil(more)), required: true }],
      action: "Raise",
      run: async ({ most: limit = "" }) => {
        const { items } = await get("/v1/budgets", { subject });
        const changed = currency ? { max_money: `${limit.trim()} ${currency}` } : { [LIMITS[resource] ?? resource]: Number(limit) };
        await send("PUT", "/v1/budgets", { subject, budget: { ...items[0]?.budget, ...changed } });
        done();
      },
    });
  return html`<${Act} needs="set_budget" class="main-action" run=${raise} label=${`Raise the limit: ${name(item)}`} done="The limit is raised.">Raise the limit<//>`;
}

/** @param {Props} props */
function StuckAgent({ item, done }) {
  const { lock_keys: keys = [], agents = [], job_id: job, holder_agent: holder } = item.more;
  const breakLock = () =>
    ask({
      title: "Break a lock",
      text: "Its holder loses it at once, and may not know. A fencing token protects what checks it.",
      fields: [
        { name: "lock_key", label: "Lock", value: keys[0], options: keys.map((/** @type {string} */ key) => ({ value: key, label: key.slice(0, 120) })) },
        { ...REASON, required: true },
      ],
      action: "Break the lock",
      isDanger: true,
      run: async (values) => (await send("POST", "/v1/locks/break", values), done()),
    });
  const end = (/** @type {"abort" | "yield"} */ verb) => () =>
    ask({
      title: verb === "abort" ? "Abort the job?" : "Return the job to the queue?",
      text: verb === "abort" ? "Jobs that wait for its success fail, too." : "Another worker may take it. It does not count as a failure.",
      fields: [REASON],
      action: verb === "abort" ? "Abort" : "Return to the queue",
      isDanger: verb === "abort",
      run: async ({ reason }) => (await send("POST", `/v1/jobs/${segment(job)}/${verb}`, reason ? { reason } : {}), done()),
    });
  return html`${keys.length > 0 && html`<${Act} needs="break_lock" class="danger" run=${breakLock} label=${`Break a lock: ${name(item)}`} done="The lock is broken.">Break a lock<//>`}
    ${job && html`<${Act} needs="yield_job" run=${end("yield")} label=${`Return to the queue: ${name(item)}`} done="The job is in the queue again.">Return to the queue<//>
      <${Act} needs="abort_job" class="danger" run=${end("abort")} label=${`Abort: ${name(item)}`} done="The job is aborted.">Abort<//>`}
    ${[...new Set([...(holder ? [holder] : []), ...agents])].slice(0, 3).map((/** @type {string} */ agent) => html`<${Write} to=${agent} key=${agent} />`)}`;
}

/** @param {Props} props */
function DeadNode({ item, done }) {
  const remove = () =>
    ask({
      title: "Remove the node?",
      text: html`<strong><${Line} text=${item.id} max=${80} /></strong> leaves the list of nodes. It is listed again when it starts.`,
      action: "Remove",
      isDanger: true,
      run: async () => (await send("DELETE", `/v1/nodes/${segment(item.id)}`), done()),
    });
  return html`<${Act} needs="remove_node" class="danger" run=${remove} label=${`Remove: ${name(item)}`} done="The node is removed.">Remove<//>`;
}

/** @type {Record<string, (props: Props) => any>} */
const ACTIONS = {
  conflict: Conflict, approval: Approval, failed_job: FailedJob, dead_letter: DeadLetter, overdue_ack: OverdueAck,
  broken_promise: BrokenPromise, budget: Budget, stuck_agent: StuckAgent, node_dead: DeadNode,
};

/** The buttons of an item.
 * @param {Props} props */
export function Actions({ item, done }) {
  const view = ACTIONS[item.kind];
  return view ? html`<${view} item=${item} done=${done} />` : null;
}

/** What stands below the title of an item, with its action if that takes more than buttons.
 * @param {Props} props */
export function Body({ item, done }) {
  if (item.kind === "question") return html`<${Answer} more=${item.more} title=${item.title} done=${done} />`;
  if (item.kind === "approval") return html`<p class="small quiet">Expires <${Time} ms=${item.more.expires_ms} /></p>`;
  if (item.kind === "budget") return html`<${Bar} share=${item.more.share} label="Share of the limit" />`;
  if (item.kind === "failed_job") return html`<span><${Id} id=${item.id} label="id of the job" /></span>`;
  return null;
}
