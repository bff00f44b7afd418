/** What a decision is about, shown in its dialog: read when it opens. */
import { html } from "../../vendor.js";
import { get, segment } from "../../app/api.js";
import { useLive } from "../../app/state.js";
import { Facts, Loaded } from "../../parts/page.js";
import { Json, Line, Text } from "../../parts/text.js";
import { Time } from "../../parts/time.js";
import { readConflict } from "../conflicts/detail.js";
import { Columns } from "../conflicts/merge.js";
import { columnsOf, takenSide } from "../conflicts/sides.js";

/** Exactly what an agent asks for, read when it is shown.
 * @param {{id: string}} props */
export function Asked({ id }) {
  const found = useLive(() => get(`/v1/approvals/${segment(id)}`), ["approval"], id);
  return html`<${Loaded} of=${found}>${(/** @type {any} */ asked) => html`<${Request} asked=${asked} />`}<//>`;
}

/** @param {{asked: any}} props */
export function Request({ asked }) {
  const manifests = manifestsOf(asked.arguments);
  return html`<div class="stack">
    <${Facts}
      of=${[
        ["Agent", html`<${Line} text=${asked.agent} max=${80} />`],
        ["Operation", html`<code><${Line} text=${asked.operation} max=${80} /></code>`],
        ["Asks for", asked.asks_for.map((/** @type {string} */ each) => html`<div><${Text} text=${each} max=${400} /></div>`)],
        ["Expires", html`<${Time} ms=${Date.parse(asked.expires_at)} />`],
        ["State", asked.state === "pending" ? null : html`${asked.state} by <${Line} text=${asked.decided_by} max=${80} />`],
      ]}
    />
    ${manifests.length > 0 && html`<${Json} value=${manifests.length === 1 ? manifests[0] : manifests} />`}
    ${manifests.length > 0 ? html`<details><summary class="quiet">All of what is asked for, as it will be done</summary><${Json} value=${asked.arguments} /></details>` : html`<${Json} value=${asked.arguments} />`}
  </div>`;
}

/** Return what the jobs that are asked for say, without what the mesh adds.
 * @param {any} given @returns {any[]} */
function manifestsOf(given) {
  const jobs = Array.isArray(given?.jobs) ? given.jobs : [];
  const known = jobs.map((/** @type {any} */ each) => each?.manifest).filter((/** @type {any} */ each) => each && typeof each === "object");
  return known.length === jobs.length ? known : [];
}

/** What taking a side of a conflict means.
 * @param {{id: string, side: "left" | "right"}} props */
export function Difference({ id, side }) {
  const found = useLive(() => readConflict(id), ["conflict"], id);
  return html`<${Loaded} of=${found}>${(/** @type {import("../conflicts/sides.js").Conflict} */ conflict) => html`<${Columns}
    columns=${columnsOf(conflict).filter((each) => each.change !== "")}
    takenOf=${(/** @type {import("../conflicts/sides.js").Column} */ each) => takenSide(side, each)}
  />`}<//>`;
}
