/** The rhythm: the current bar as a score, the bars before it, promises, and changes of the tempo. */
import { html } from "../vendor.js";
import { get, send } from "../app/api.js";
import { Link, refine, route, to } from "../app/router.js";
import { mesh, useLive } from "../app/state.js";
import { Badge } from "../parts/badge.js";
import { Act } from "../parts/button.js";
import { ask } from "../parts/dialog.js";
import { Empty, Facts, Loaded, Page } from "../parts/page.js";
import { usePages } from "../parts/pages.js";
import { Table, TwoLines } from "../parts/table.js";
import { Line, Text } from "../parts/text.js";
import { Time } from "../parts/time.js";
import { Bars } from "./rhythm/bars.js";
import { Score } from "./rhythm/score.js";

/** @typedef {{thread_id: string, asker: string, asked_of: string | null, state: string, helper: string | null, asked_ms: number, due_ms: number | null, ended_ms: number | null}} Promised */

export default function Rhythm() {
  const policy = useLive((signal) => get("/v1/rhythm/policy", {}, { signal }), ["tempo", "report"], "policy");
  return html`<${Page} title="Rhythm" note="Beats, bars and phases that all nodes share" actions=${policy.value && html`<${Actions} policies=${policy.value} />`}>
    <${Loaded} of=${policy}>
      ${(/** @type {any} */ policies) => html`${policies.incident && html`<${Incident} incident=${policies.incident} />`}
        <section class="panel" aria-label="This bar"><${Score} beat=${mesh.beats?.value} phases=${policies.in_force.phases} /><${Tempo} policies=${policies} /></section>`}
    <//>
    <${Bars} />
    <${Promises} />
  <//>`;
}

/** @param {{policies: any}} props */
function Actions({ policies }) {
  const { policy } = policies.in_force;
  const setTempo = () =>
    ask({
      title: "Change the tempo",
      text: "It changes on every node at the same downbeat, at least two bars ahead.",
      fields: [{ name: "bpm", label: `Beats a minute (${policy.limits.min_bpm} to ${policy.limits.max_bpm})`, value: String(policies.in_force.tempo_bpm), required: true }],
      action: "Announce it",
      run: ({ bpm }) => send("PUT", "/v1/rhythm/policy", { policy: { ...policy, initial_bpm: Number(bpm) } }),
    });
  const declare = () =>
    ask({
      title: "Declare an incident",
      text: "The tempo does not adapt until it is cleared.",
      fields: [{ name: "reason", label: "Reason", required: true }],
      action: "Declare it",
      isDanger: true,
      run: ({ reason }) => send("PUT", "/v1/rhythm/incident", { reason }),
    });
  return html`<${Act} needs="set_policy" run=${setTempo}>Change the tempo<//>
    ${!policies.incident && html`<${Act} needs="declare_incident" run=${declare}>Declare an incident<//>`}`;
}

/** @param {{incident: any}} props */
function Incident({ incident }) {
  return html`<div class="problem row" role="status">
    <strong>Incident</strong> <${Text} text=${incident.reason} max=${300} /> <span>declared <${Time} ms=${Date.parse(incident.declared_at)} /></span>
    <${Act} needs="clear_incident" run=${() => send("DELETE", "/v1/rhythm/incident")} done="The incident is cleared.">Clear it<//>
  </div>`;
}

/** @param {{policies: any}} props */
function Tempo({ policies: { in_force: now, announced } }) {
  return html`<${Facts}
      of=${[
        ["Tempo", `${now.tempo_bpm} beats a minute: a beat lasts ${now.beat_ms / 1_000} s, a bar ${(now.beat_ms * now.bar_len_beats) / 1_000} s`],
        ["Set by", html`<span>${now.reason === "built in" ? "the defaults" : html`<${Line} text=${now.reason} />`} · <${Link} href=${to("log", "", { kind: "SetTempo" })}>Changes of the tempo<//></span>`],
      ]}
    />
    ${announced.map(
      (/** @type {any} */ each) => html`<p class="row" key=${each.policy_hash}>
        <${Badge} state="scheduled" text="announced" /> ${each.tempo_bpm} beats a minute <${Time} ms=${each.anchor_ms} /> <${Line} text=${each.reason} />
      </p>`,
    )}`;
}

const STATES = ["", "asked", "promised", "kept", "broken", "expired"];

function Promises() {
  const state = STATES.find((each) => each === route.value.query.get("promises")) ?? "";
  const pages = usePages("/v1/rhythm/promises", { state }, ["op", "phrase", "messages"], (/** @type {Promised} */ row) => row.thread_id);
  return html`<section class="stack" aria-label="Promises">
    <div class="row">
      <h2>Promises</h2>
      <label class="filters"><span class="unseen">State</span>
        <select onChange=${(/** @type {any} */ event) => refine({ promises: event.target.value })}>
          ${STATES.map((each) => html`<option value=${each} selected=${each === state}>${each || "all"}</option>`)}
        </select>
      </label>
    </div>
    <${Loaded} of=${pages}>
      ${(/** @type {Promised[]} */ rows) =>
        rows.length === 0
          ? html`<${Empty} title="No promises" icon="clock">Agents ask each other for help with <code>vox-mesh help ask</code>.<//>`
          : html`<${Table} label="Promises" rows=${rows} columns=${COLUMNS} keyOf=${(/** @type {Promised} */ row) => row.thread_id} more=${pages.more} height=${360} />`}
    <//>
  </section>`;
}

/** @param {string | null} name */
function agentOf(name) {
  return name ? html`<${Link} href=${to("agent", name)}><${Line} text=${name} max=${60} /><//>` : html`<span class="quiet">anyone</span>`;
}

/** @param {{of: Promised}} props */
function Conversation({ of: { thread_id: thread } }) {
  return html`<${Link} href=${to("messages", thread)}>Conversation<//>`;
}

/** @type {import("../parts/table.js").Column<Promised>[]} */
const COLUMNS = [
  { name: "state", label: "State", width: "120px", cell: (row) => html`<${Badge} state=${row.state} />` },
  { name: "asker", label: "Asked by", cell: (row) => agentOf(row.asker), narrow: (row) => html`<${TwoLines} top=${html`${agentOf(row.asker)}<span class="quiet">→</span>${agentOf(row.helper ?? row.asked_of)}`} below=${html`<${Conversation} of=${row} /><${Time} ms=${row.ended_ms ?? row.due_ms ?? row.asked_ms} />`} />` },
  { name: "helper", label: "Helper", isWide: true, cell: (row) => agentOf(row.helper ?? row.asked_of) },
  { name: "thread", label: "Messages", width: "110px", isWide: true, cell: (row) => html`<${Conversation} of=${row} />` },
  { name: "due", label: "Due", width: "110px", isWide: true, cell: (row) => html`<${Time} ms=${row.due_ms} />` },
  { name: "ended", label: "Ended", width: "110px", isWide: true, cell: (row) => html`<${Time} ms=${row.ended_ms} />` },
];
