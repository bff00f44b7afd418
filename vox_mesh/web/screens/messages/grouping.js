/** Messages that belong together, and what their states mean. */

/**
 * @typedef {{message_uuid: string, sender_agent: string, receiver_agent: string, msg_type: string, payload: any, priority: number,
 *   thread_id: string | null, correlation_id: string | null, reply_to: string | null, ack_by_ms: number | null,
 *   delivery_attempts: number, max_attempts: number, sender_node: string, hlc: string, created_at: string, state: string,
 *   not_before_ms: number | null, ended_reason: string | null, signed_by_agent: string}} Message
 * @typedef {{id: string, messages: Message[], names: string[], last: Message, state: string}} Talk
 */

/** The states of messages as people say them.
 * @type {Record<string, string>} */
const WORDS = { stored: "not received", delivered: "received", acked: "acknowledged", dead: "dead letter", expired: "expired", overdue: "overdue" };

/** Return the words for a state.
 * @param {string} state */
export function wordsOf(state) {
  return WORDS[state] ?? state;
}

/** Return the state of a message, or `overdue` if it should have been acknowledged by now.
 * @param {Message} message */
export function stateOf({ state, ack_by_ms: ackBy }) {
  const isOpen = state === "stored" || state === "delivered";
  return isOpen && ackBy !== null && ackBy < Date.now() ? "overdue" : state;
}

/** Return when a message was sent.
 * @param {Message} message */
export function sentMs({ hlc, created_at: created }) {
  return Number(hlc.split("-")[0]) || Date.parse(created);
}

/** Return the id of the conversation of a message: its thread, or itself.
 * @param {Message} message */
export function threadOf(message) {
  return message.thread_id ?? message.message_uuid;
}

const WORST = ["dead", "overdue", "stored", "delivered", "expired", "acked"];

/** Group messages, newest first, by conversation.
 * @param {Message[]} messages @returns {Talk[]} */
export function conversationsOf(messages) {
  /** @type {Map<string, Message[]>} */
  const groups = new Map();
  for (const message of messages) {
    const id = threadOf(message);
    groups.set(id, [...(groups.get(id) ?? []), message]);
  }
  return [...groups].map(([id, group]) => {
    const states = new Set(group.map(stateOf));
    const [last] = /** @type {[Message]} */ (/** @type {unknown} */ (group));
    return { id, messages: group, names: namesOf(group), last, state: WORST.find((each) => states.has(each)) ?? last.state };
  });
}

/** Return who takes part, those who wrote last first.
 * @param {Message[]} messages */
export function namesOf(messages) {
  return [...new Set(messages.flatMap((each) => [each.sender_agent, each.receiver_agent]))];
}

/** Values that say nothing to a person. */
const DULL = /_(?:ms|uuid|id)$/;

/** Return a message in one line: its text, or else its type and the values of its payload.
 * @param {Message} message */
export function briefOf({ payload, msg_type: type }) {
  if (payload === null) return "hidden";
  const text = textOf(payload);
  if (text !== null) return text;
  const values = typeof payload === "object" && !Array.isArray(payload) ? Object.entries(payload).filter(([name, value]) => value !== "" && value !== null && !DULL.test(name)) : [];
  const words = values.length > 0 ? values.map(([name, value]) => `${name.replaceAll("_", " ")}: ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ") : JSON.stringify(payload);
  return type === "message" ? words : `${type}: ${words}`;
}

/** Return the text of a payload, or `null` if it is another value.
 * @param {any} payload @returns {string | null} */
export function textOf(payload) {
  if (typeof payload === "string") return payload;
  const entries = payload !== null && typeof payload === "object" && !Array.isArray(payload) ? Object.entries(payload) : [];
  const [first] = entries;
  return entries.length === 1 && first && ["text", "body", "message"].includes(first[0]) && typeof first[1] === "string" ? first[1] : null;
}
