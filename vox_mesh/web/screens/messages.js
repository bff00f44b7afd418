/** Messages: conversations at the left, one of them at the right; writing as yourself, and retrying dead letters. */
import { html } from "../vendor.js";
import { get, segment, send } from "../app/api.js";
import { Link, route, to } from "../app/router.js";
import { may, session } from "../app/session.js";
import { mesh, useLive } from "../app/state.js";
import { Act } from "../parts/button.js";
import { ChoiceFilter, NoFilters, TextFilter } from "../parts/filter.js";
import { Empty, Loaded, Page, Tabs } from "../parts/page.js";
import { usePages } from "../parts/pages.js";
import { useNarrow } from "../parts/table.js";
import { Conversation } from "./messages/conversation.js";
import { conversationsOf, wordsOf } from "./messages/grouping.js";
import { ConversationList } from "./messages/list.js";
import { Compose } from "./messages/write.js";

/** @typedef {import("./messages/grouping.js").Message} Message */

const FILTERS = ["from", "for", "state"];
const VIEWS = /** @type {const} */ ([["", "All"], ["mine", "For you"], ["dead", "Dead letters"], ["overdue", "Overdue"]]);

const STATES = [{ value: "", label: "any" }, ...["stored", "delivered", "acked", "expired"].map((value) => ({ value, label: wordsOf(value) }))];

export default function Messages() {
  const { id, query } = route.value;
  const isNarrow = useNarrow();
  const isWriting = query.get("write") !== null;
  const hasDetail = isWriting || id !== "";
  const write = may("send_message") && html`<${Link} class="button" href=${to("messages", "", { write: "1" })}>Write a message<//>`;
  const detail = isWriting
    ? html`<${Compose} to=${query.get("to") ?? ""} key="write" />`
    : id
      ? html`<${Conversation} id=${id} key=${id} />`
      : html`<div class="panel"><${Empty} title="Choose a conversation" icon="messages">Or write to an agent, a role or everyone.<//></div>`;
  return html`<${Page} title="Messages" note=${noteOf(mesh.messages?.value)} actions=${!isWriting && write}>
    ${isNarrow && hasDetail
      ? html`<div><${Link} href=${to("messages")}>All conversations<//></div>${detail}`
      : html`<div class="messages-split"><${Overview} />${!isNarrow && detail}</div>`}
  <//>`;
}

/** @param {{unread: number, claimed: number, overdue: number, dead: number} | undefined} mail */
function noteOf(mail) {
  if (!mail) return "";
  const parts = /** @type {[number, string][]} */ ([[mail.unread, "unread"], [mail.claimed, "not acknowledged"], [mail.overdue, "overdue"], [mail.dead, "dead"]]);
  return parts.filter(([count]) => count > 0).map(([count, text]) => `${count.toLocaleString("en")} ${text}`).join(", ");
}

/** The conversations that match. */
function Overview() {
  const { query, id } = route.value;
  const view = query.get("view") ?? "";
  const kept = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? ""]));
  const tabs = VIEWS.map(([name, text]) => ({ href: to("messages", id, { ...kept, view: name }), text, isCurrent: name === view }));
  return html`<section class="stack messages-side" aria-label="Mailbox">
    <${Tabs} label="Views" tabs=${tabs} />
    ${view === "overdue" ? html`<${Overdue} />` : html`<${Listed} view=${view} filter=${kept} />`}
  </section>`;
}

/** @param {{view: string, filter: Record<string, string>}} props */
function Listed({ view, filter }) {
  const own = session.value?.agent ?? "";
  const query = {
    sender: filter.from,
    receiver: view === "mine" ? own : filter.for,
    state: view === "dead" ? "dead" : filter.state,
  };
  const pages = usePages("/v1/messages", query, ["messages"], (/** @type {Message} */ each) => each.message_uuid);
  return html`<div class="filters" role="search">
      <${TextFilter} name="from" label="From" />
      ${view !== "mine" && html`<${TextFilter} name="for" label="For" />`}
      ${view === "" && html`<${ChoiceFilter} name="state" label="State" options=${STATES} />`}
      <${NoFilters} names=${FILTERS} />
    </div>
    <${Loaded} of=${pages}>
      ${(/** @type {Message[]} */ messages) => html`
        ${view === "mine" && messages.some(isOpen) && html`<${AckAll} agent=${own} done=${pages.reload} />`}
        ${messages.length === 0 ? html`<${Nothing} view=${view} isFiltered=${FILTERS.some((name) => filter[name])} />` : html`<${ConversationList} conversations=${conversationsOf(messages)} more=${pages.more} />`}
      `}
    <//>`;
}

/** @param {Message} message */
function isOpen(message) {
  return message.state === "stored" || message.state === "delivered";
}

/** Receive and acknowledge all messages of the person.
 * @param {{agent: string, done: () => void}} props */
function AckAll({ agent, done }) {
  const run = async () => {
    const claimed = await send("POST", `/v1/inbox/${segment(agent)}/claim`, {});
    for (const each of claimed) {
      await send("POST", `/v1/messages/${segment(each.message_uuid)}/ack`, { claim_owner: each.claim_owner });
    }
    done();
  };
  return html`<div><${Act} class="small" needs="claim_messages" done="Acknowledged." run=${run}>Acknowledge all<//></div>`;
}

function Overdue() {
  const found = useLive((signal) => get("/v1/messages/overdue", { limit: 200 }, { signal }), ["messages"]);
  return html`<${Loaded} of=${found}>
    ${(/** @type {Message[]} */ messages) => (messages.length === 0 ? html`<${Nothing} view="overdue" isFiltered=${false} />` : html`<${ConversationList} conversations=${conversationsOf(messages)} more=${null} />`)}
  <//>`;
}

/** @param {{view: string, isFiltered: boolean}} props */
function Nothing({ view, isFiltered }) {
  if (isFiltered) return html`<${Empty} title="No message matches" icon="messages">Change or clear the filters.<//>`;
  if (view === "dead") return html`<${Empty} title="No dead letters">Every message was delivered, or still can be.<//>`;
  if (view === "overdue") return html`<${Empty} title="Nothing is overdue">Messages with a time limit were acknowledged in time.<//>`;
  if (view === "mine") return html`<${Empty} title="No message for you" icon="messages">Agents write to <code>${session.value?.agent}</code>.<//>`;
  return html`<${Empty} title="No messages yet" icon="messages">Write one, or have an agent: <code>vox-mesh send AGENT TEXT</code><//>`;
}
