/** The list of conversations. */
import { html } from "../../vendor.js";
import { Link, route, to } from "../../app/router.js";
import { Badge } from "../../parts/badge.js";
import { Line } from "../../parts/text.js";
import { Time } from "../../parts/time.js";
import { briefOf, sentMs, wordsOf } from "./grouping.js";

/** @typedef {import("./grouping.js").Talk} Talk */

/** @param {{conversations: Talk[], more: (() => void) | null}} props */
export function ConversationList({ conversations, more }) {
  return html`<ul class="messages-list">
      ${conversations.map((talk) => html`<li key=${talk.id}><${Entry} talk=${talk} /></li>`)}
    </ul>
    ${more && html`<div><button class="small" onClick=${more}>Show older ones</button></div>`}`;
}

/** @param {{talk: Talk}} props */
function Entry({ talk }) {
  const { last, messages, state } = talk;
  const { id, query } = route.value;
  const kept = { ...Object.fromEntries(query), write: "", to: "" };
  return html`<${Link} href=${to("messages", talk.id, kept)} aria-current=${talk.id === id ? "true" : undefined}>
    <span class="messages-names"><${Line} text=${last.sender_agent} max=${40} /><span class="quiet"> → </span><${Line} text=${last.receiver_agent} max=${40} /></span>
    <span class="quiet small"><${Time} ms=${sentMs(last)} /></span>
    <span class="quiet"><${Line} text=${briefOf(last)} max=${120} /></span>
    <span class="messages-state">${messages.length > 1 && html`<span class="quiet small number">${messages.length}</span>`}<${Badge} state=${state} text=${wordsOf(state)} /></span>
  <//>`;
}
