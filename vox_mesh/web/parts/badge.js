/** A state, by shape, text and colour. */
import { html } from "../vendor.js";
import { Icon } from "./icon.js";

/** @typedef {"good" | "warn" | "bad" | "busy" | ""} Tone */

/** The tone and the shape of each state of jobs, nodes, agents, messages, approvals and promises.
 * @type {Record<string, [Tone, string]>} */
const STATES = {
  succeeded: ["good", "check"], live: ["good", "check"], alive: ["good", "check"], active: ["good", "check"], applied: ["good", "check"],
  done: ["good", "check"], kept: ["good", "check"], acked: ["good", "check"], ok: ["good", "check"], verified: ["good", "check"], resolved: ["good", "check"],
  running: ["busy", "half"], claimed: ["busy", "half"], delivered: ["busy", "half"], approved: ["busy", "half"], working: ["busy", "half"],
  pending: ["", "ring"], ready: ["", "ring"], unread: ["", "ring"], quiet: ["", "ring"], idle: ["", "ring"], scheduled: ["", "clock"], promised: ["", "clock"], open: ["warn", "diamond"],
  blocked: ["warn", "pause"], waiting: ["warn", "pause"], paused: ["warn", "pause"], draining: ["warn", "pause"], stuck: ["warn", "pause"],
  overdue: ["warn", "clock"], late: ["warn", "clock"], suspect: ["warn", "clock"], stale: ["warn", "clock"], expired: ["warn", "clock"], asked: ["warn", "question"], question: ["warn", "question"],
  warn: ["warn", "clock"], alert: ["warn", "diamond"], critical: ["bad", "diamond"],
  failed: ["bad", "cross"], dead: ["bad", "cross"], broken: ["bad", "cross"], denied: ["bad", "cross"], refused: ["bad", "cross"],
  aborted: ["", "cross"], cancelled: ["", "cross"], yielded: ["", "retry"], left: ["", "minus"], gone: ["", "minus"],
};

/** Return the tone of a state.
 * @param {string} state @returns {Tone} */
export function toneOf(state) {
  return STATES[state]?.[0] ?? "";
}

/** @param {{state: string, text?: string, tone?: Tone, shape?: string}} props */
export function Badge({ state, text, tone, shape }) {
  const [knownTone, knownShape] = STATES[state] ?? ["", "ring"];
  return html`<span class=${`badge ${tone ?? knownTone}`}><${Icon} name=${shape ?? knownShape} />${text ?? state}</span>`;
}
