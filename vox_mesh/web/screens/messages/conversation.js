/** One conversation: its messages in order, how far each has come, and a reply. */
import { html } from "../../vendor.js";
import { get, segment, send } from "../../app/api.js";
import { Link, to } from "../../app/router.js";
import { session } from "../../app/session.js";
import { useLive } from "../../app/state.js";
import { Badge } from "../../parts/badge.js";
import { Act } from "../../parts/button.js";
import { Empty, Loaded } from "../../parts/page.js";
import { Id, Json, Line, Text } from "../../parts/text.js";
import { Time } from "../../parts/time.js";
import { namesOf, sentMs, stateOf, textOf, wordsOf } from "./grouping.js";
import { Reply } from "./write.js";

/** @typedef {import("./grouping.js").Message} Message */

const MAX_SHOWN = 200;

/** @type {Record<string, {text: string, tone: import("../../parts/badge.js").Tone, shape: string, title: string}>} */
const SIGNATURES = {
  verified: { text: "signed", tone: "good", shape: "check", title: "Its sender has signed it with its own key" },
  absent: { text: "not signed", tone: "", shape: "minus", title: "Its sender has not signed it: its node vouches for it" },
  wrong: { text: "wrong signature", tone: "bad", shape: "cross", title: "The signature is not by its sender: do not trust it" },
};

/** @param {{id: string}} props */
export function Conversation({ id }) {
  const found = useLive((signal) => read(id, signal), ["messages"], id);
  return html`<section class="panel messages-talk" aria-label="Conversation">
    <${Loaded} of=${found}>
      ${(/** @type {{messages: Message[], isCut: boolean}} */ { messages, isCut }) =>
        messages.length === 0 ? html`<${Empty} title="This conversation is gone" icon="messages">Old messages are pruned.<//>` : html`<${Talk} id=${id} messages=${messages} isCut=${isCut} reload=${found.reload} />`}
    <//>
  </section>`;
}

/** Read a conversation, oldest first: the messages of its thread, and the first one, which may have none.
 * @param {string} id @param {AbortSignal} signal */
async function read(id, signal) {
  const page = await get("/v1/messages", { thread: id, limit: MAX_SHOWN }, { signal });
  /** @type {Message[]} */
  const messages = page.items.toReversed();
  const isBegun = messages.length === 0 || messages.some((each) => each.reply_to === id);
  if (isBegun && !messages.some((each) => each.message_uuid === id)) {
    const first = await get(`/v1/messages/${segment(id)}`, {}, { signal }).catch(() => null);
    if (first) messages.unshift(first);
  }
  return { messages, isCut: page.next !== null && page.items.length >= MAX_SHOWN };
}

/** @param {{id: string, messages: Message[], isCut: boolean, reload: () => void}} props */
function Talk({ id, messages, isCut, reload }) {
  return html`<header class="row">
      <h2 class="messages-people">${namesOf(messages).slice(0, 6).map((name, at) => html`${at > 0 && ", "}<${Link} href=${to("agent", name)} key=${name}><${Line} text=${name} max=${40} /><//>`)}</h2>
      <${Id} id=${id} length=${16} label="id of the thread" />
    </header>
    ${isCut && html`<p class="quiet small">The last ${MAX_SHOWN} messages.</p>`}
    <ol class="messages-bubbles">${messages.map((each) => html`<${Bubble} message=${each} reload=${reload} key=${each.message_uuid} />`)}</ol>
    <${Reply} messages=${messages} done=${reload} />`;
}

/** @param {{message: Message, reload: () => void}} props */
function Bubble({ message, reload }) {
  const state = stateOf(message);
  const isOwn = message.sender_agent === session.value?.agent;
  const signature = SIGNATURES[message.signed_by_agent];
  return html`<li class=${isOwn ? "messages-bubble own" : "messages-bubble"} id=${message.message_uuid}>
    <div class="row small">
      <strong><${Line} text=${message.sender_agent} max=${60} /></strong><span class="quiet">to <${Line} text=${message.receiver_agent} max=${60} /></span>
      <span class="quiet"><${Time} ms=${sentMs(message)} /></span>
      ${message.msg_type !== "message" && html`<code><${Line} text=${message.msg_type} max=${40} /></code>`}
      ${message.priority > 1 && html`<${Badge} state="urgent" tone="warn" shape="diamond" text=${message.priority > 2 ? "urgent" : "important"} />`}
    </div>
    <${Payload} value=${message.payload} />
    <div class="row small">
      <${Badge} state=${state} text=${wordsOf(state)} />
      ${signature && html`<span title=${signature.title}><${Badge} state="signature" ...${signature} /></span>`}
      ${message.delivery_attempts > 1 && html`<span class="quiet">attempt ${message.delivery_attempts} of ${message.max_attempts}</span>`}
      ${message.ack_by_ms !== null && state !== "acked" && html`<span class="quiet">acknowledge <${Time} ms=${message.ack_by_ms} /></span>`}
      ${message.ended_reason && html`<span class="quiet"><${Line} text=${message.ended_reason} max=${120} /></span>`}
      ${state === "dead" && html`<${Act} class="small" needs="retry_message" done="It is delivered again." run=${async () => (await send("POST", `/v1/messages/${segment(message.message_uuid)}/retry`), reload())}>Retry<//>`}
    </div>
  </li>`;
}

/** @param {{value: any}} props */
function Payload({ value }) {
  if (value === null) return html`<p class="quiet">Hidden: it is for its receiver.</p>`;
  const text = textOf(value);
  return text === null ? html`<${Json} value=${value} />` : html`<p><${Text} text=${text} /></p>`;
}
