/** The kinds of things that need a person: their titles, and where each is shown whole. */
import { to } from "../../app/router.js";

/**
 * @typedef {{kind: string, id: string, title: string, detail: string, since_ms: number, urgency: "now" | "soon" | "later",
 *   link: {screen: string, id: string}, more: Record<string, any>}} Item
 * @typedef {{title: string, one: string, icon: string, text: string, all?: string, hrefOf?: (item: Item) => string}} Kind
 */

/** @type {(item: Item) => string} */
const message = ({ more, id }) => to("messages", more.thread_id ?? id);
/** @type {(item: Item) => string} */
const job = ({ more }) => to("job", more.job_id);

/** @type {Record<string, Kind>} */
export const KINDS = {
  approval: { title: "Approvals", one: "approval", icon: "check", text: "An agent may go on only if you allow it.", hrefOf: ({ id }) => to("approval", id) },
  question: { title: "Questions", one: "question", icon: "question", text: "A job waits for an answer.", hrefOf: job },
  conflict: { title: "Conflicts", one: "conflict", icon: "conflicts", text: "Two writers changed one row.", all: to("conflicts"), hrefOf: ({ id }) => to("conflicts", id) },
  stuck_agent: {
    title: "Stuck agents", one: "stuck agent", icon: "pause", text: "Alive, but without progress.", all: to("fleet"),
    hrefOf: ({ more }) => (more.job_id ? to("job", more.job_id) : to("agent", more.agents?.[0] ?? "")),
  },
  budget: { title: "Budgets near their limit", one: "budget", icon: "costs", text: "Work stops when a limit is reached.", all: to("costs"), hrefOf: ({ more }) => to("costs", "", { subject: more.subject }) },
  failed_job: { title: "Failed jobs", one: "failed job", icon: "jobs", text: "All attempts have failed, and there is no retry yet.", all: to("jobs", "", { state: "failed" }), hrefOf: job },
  dead_letter: { title: "Dead letters", one: "dead letter", icon: "messages", text: "Messages that could not be delivered.", all: to("messages", "", { view: "dead" }), hrefOf: message },
  overdue_ack: { title: "Overdue acknowledgements", one: "overdue acknowledgement", icon: "clock", text: "The recipient should have acknowledged by now.", all: to("messages", "", { view: "overdue" }), hrefOf: message },
  broken_promise: { title: "Broken promises", one: "broken promise", icon: "rhythm", text: "Help that was promised and has not come.", all: to("rhythm"), hrefOf: ({ id }) => to("messages", id) },
  node_dead: { title: "Dead nodes", one: "dead node", icon: "fleet", text: "They stopped without saying so.", all: to("fleet"), hrefOf: ({ id }) => to("fleet", "", { node: id }) },
};

/** Return what is known of a kind; a newer node may have others.
 * @param {string} name @returns {Kind} */
export function kindOf(name) {
  return KINDS[name] ?? { title: name, one: name, icon: "needs", text: "" };
}

/** Return the key of an item.
 * @param {Item} item */
export function keyOf(item) {
  return `${item.kind} ${item.id}`;
}
