/** Writing as the person who is signed in: to an agent, a role or everyone, or in a conversation. */
import { html, useRef, useState } from "../../vendor.js";
import { send, words } from "../../app/api.js";
import { keyed } from "../../app/once.js";
import { go, to as hrefOf } from "../../app/router.js";
import { may, session } from "../../app/session.js";
import { mesh } from "../../app/state.js";
import { toast } from "../../parts/toast.js";
import { namesOf, threadOf } from "./grouping.js";

/** @typedef {import("./grouping.js").Message} Message */

const EVERYONE = "*";
/** The agent of the mesh itself, which reads no messages. */
const MESH = "mesh";

/** Send what a form says: once, however often it is tried, until it is changed. */
function useSending() {
  const keyOf = useRef(keyed());
  const [problem, setProblem] = useState("");
  const [isBusy, setBusy] = useState(false);
  const run = async (/** @type {Record<string, any>} */ message) => {
    setBusy(true);
    try {
      const sent = await send("POST", "/v1/messages", message.to === EVERYONE ? message : { ...message, key: keyOf.current(message) });
      keyOf.current = keyed();
      setProblem("");
      return /** @type {Message[]} */ (sent);
    } catch (error) {
      setProblem(words(error));
      return null;
    } finally {
      setBusy(false);
    }
  };
  return { run, problem, isBusy };
}

/** @param {SubmitEvent} event @returns {Record<string, string>} */
function valuesOf(event) {
  event.preventDefault();
  return /** @type {Record<string, string>} */ (Object.fromEntries(new FormData(/** @type {HTMLFormElement} */ (event.currentTarget))));
}

/** A new message.
 * @param {{to: string}} props */
export function Compose({ to }) {
  const sending = useSending();
  if (!may("send_message")) return html`<p class="problem">You may not send messages.</p>`;
  const submit = async (/** @type {SubmitEvent} */ event) => {
    const { to: receiver = "", text, priority, within } = valuesOf(event);
    const sent = await sending.run({
      to: receiver.trim(),
      payload: { text },
      priority: Number(priority),
      ...(within ? { ack_within: within } : {}),
    });
    if (!sent) return;
    toast(sent.length === 1 ? "Sent." : `Sent to ${sent.length} agents.`);
    go(hrefOf("messages", sent.length === 1 && sent[0] ? threadOf(sent[0]) : ""));
  };
  return html`<form class="panel stack" onSubmit=${submit} aria-label="New message">
    <h2>New message</h2>
    <p class="quiet small">You write as <code>${session.value?.agent}</code>. Answers come to you under “For you”.</p>
    <label class="field">
      <span>To</span>
      <input name="to" required defaultValue=${to} list="messages-to" autocomplete="off" maxlength="200" autofocus=${!to} />
      <datalist id="messages-to">
        <option value=${EVERYONE}>everyone</option>
        ${(mesh.agents?.value ?? []).map((/** @type {any} */ each) => html`<option value=${each.agent_id.slice(0, 200)} key=${each.agent_id}></option>`)}
      </datalist>
      <small>An agent, a role such as <code>role:reviewer</code>, or <code>*</code> for everyone.</small>
    </label>
    <label class="field"><span>Text</span><textarea name="text" required rows="6" autofocus=${Boolean(to)}></textarea></label>
    <div class="row">
      <label class="field">
        <span>Priority</span>
        <select name="priority"><option value="0">can wait</option><option value="1" selected>normal</option><option value="2">important</option><option value="3">urgent</option></select>
      </label>
      <label class="field">
        <span>Acknowledge within</span>
        <select name="within"><option value="">any time</option><option value="5m">5 minutes</option><option value="1h">1 hour</option><option value="24h">1 day</option></select>
      </label>
    </div>
    ${sending.problem && html`<p class="problem" role="alert">${sending.problem}</p>`}
    <div class="actions"><button class="main-action" disabled=${sending.isBusy}>Send</button></div>
  </form>`;
}

/** A reply in a conversation.
 * @param {{messages: Message[], done: () => void}} props */
export function Reply({ messages, done }) {
  const sending = useSending();
  const own = session.value?.agent;
  const last = messages.at(-1);
  const others = namesOf(messages).filter((name) => name !== own && name !== MESH);
  if (!may("send_message") || !last || others.length === 0) return null;
  const answered = messages.findLast((each) => others.includes(each.sender_agent));
  const submit = async (/** @type {SubmitEvent} */ event) => {
    const form = /** @type {HTMLFormElement} */ (event.currentTarget);
    const { to, text } = valuesOf(event);
    const message = { to, payload: { text }, thread: threadOf(last), ...(answered?.sender_agent === to ? { reply_to: answered.message_uuid } : {}) };
    if (!(await sending.run(message))) return;
    form.reset();
    done();
  };
  return html`<form class="messages-reply" onSubmit=${submit} aria-label="Reply">
    <label class="field">
      <span>Reply to</span>
      <select name="to">${others.map((name) => html`<option value=${name} selected=${name === (answered?.sender_agent ?? last.receiver_agent)} key=${name}>${name.slice(0, 60)}</option>`)}</select>
    </label>
    <label class="field"><span class="unseen">Text</span><textarea name="text" required rows="3" placeholder="Your answer"></textarea></label>
    ${sending.problem && html`<p class="problem" role="alert">${sending.problem}</p>`}
    <div class="actions"><button class="main-action" disabled=${sending.isBusy}>Send</button></div>
  </form>`;
}
