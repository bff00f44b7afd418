/** The log: every entry, newest first; what caused it, and whether it is as it was written. */
import { html, signal } from "../vendor.js";
import { get } from "../app/api.js";
import { Link, refine, route, to } from "../app/router.js";
import { LOG } from "../app/state.js";
import { Badge } from "../parts/badge.js";
import { Act } from "../parts/button.js";
import { NoFilters, TextFilter } from "../parts/filter.js";
import { Empty, Loaded, Page } from "../parts/page.js";
import { usePages } from "../parts/pages.js";
import { Table, TwoLines } from "../parts/table.js";
import { Id, Line } from "../parts/text.js";
import { Time } from "../parts/time.js";
import { Brief } from "./log/brief.js";
import { EntryDetails } from "./log/entry.js";

const FILTERS = /** @type {const} */ ([["kind", "Kind", "ScheduleJob"], ["agent", "Agent", "any"], ["node", "Node", "any"], ["job", "Job", "id"]]);

/** The last verification of the whole log that this page asked for.
 * @type {import("../vendor.js").Signal<{chains: any[], at: number} | null>} */
const verified = signal(null);

/** @typedef {{id: number, op_id: string, kind: string, hlc: string, node_id: string, agent: string, seq: number, accepted: boolean, reason: string | null, payload: any, causal_deps: any, hash: string, prev: string, grant: string | null}} Entry */

export default function Log() {
  const { id, query } = route.value;
  const filter = Object.fromEntries(FILTERS.map(([name]) => [name, query.get(name) ?? ""]));
  const pages = usePages("/v1/oplog", { ...filter, order: "newest" }, LOG, (/** @type {Entry} */ row) => row.op_id);
  const open = (/** @type {Entry} */ row) => refine({ op: row.op_id });
  const shown = query.get("op") ?? id;
  return html`<${Page} title="Log" note="Every change of the mesh, signed and chained" actions=${html`<${Verification} />`}>
    <div class="filters" role="search">
      ${FILTERS.map(
        ([name, label, example]) => html`<${TextFilter} name=${name} label=${label} placeholder=${example} key=${name} />`,
      )}
      <${NoFilters} names=${FILTERS.map(([name]) => name)} />
    </div>
    ${shown && html`<${EntryDetails} id=${shown} key=${shown} close=${() => refine({ op: "" })} />`}
    <${Loaded} of=${pages}>
      ${(/** @type {Entry[]} */ rows) =>
        rows.length === 0
          ? html`<${Empty} title="No entry matches" icon="log">Change or clear the filters.<//>`
          : html`<${Table} label="Entries" rows=${rows} columns=${COLUMNS} keyOf=${(/** @type {Entry} */ row) => row.op_id} more=${pages.more} open=${open}
              foot=${`${rows.length} entries${pages.more ? ", more below" : ""}`} />`}
    <//>
  <//>`;
}

/** @param {Entry} row */
function whenOf({ hlc }) {
  return html`<${Time} ms=${Number(hlc.split("-")[0])} />`;
}

/** @param {Entry} row */
function kindOf({ op_id: id, kind }) {
  return html`<${Link} href=${to("log", "", { ...Object.fromEntries(route.value.query), op: id })}><${Line} text=${kind} max=${40} /><//>`;
}

/** Who acted; a node acts for itself, too.
 * @param {{of: Entry}} props */
function By({ of: { agent, node_id: node } }) {
  const name = html`<${Line} text=${agent} max=${40} />`;
  return html`<span title=${`at node ${node.slice(0, 60)}`}>${agent === node ? name : html`<${Link} href=${to("agent", agent)}>${name}<//>`}</span>`;
}

/** @type {import("../parts/table.js").Column<Entry>[]} */
const COLUMNS = [
  { name: "at", label: "When", width: "96px", isWide: true, cell: whenOf },
  {
    name: "kind",
    label: "What",
    width: "minmax(0, 150px)",
    cell: kindOf,
    narrow: (row) => html`<${TwoLines} top=${html`${kindOf(row)}${whenOf(row)}`} below=${html`<${By} of=${row} /><${Brief} of=${row} />`} />`,
  },
  { name: "verdict", label: "Verdict", width: "96px", isWide: true, cell: (row) => html`<${Badge} state=${row.accepted ? "applied" : "refused"} />` },
  { name: "agent", label: "By", width: "minmax(90px, 130px)", isWide: true, cell: (row) => html`<${By} of=${row} />` },
  { name: "what", label: "Content", isWide: true, cell: (row) => html`<${Brief} of=${row} />` },
  { name: "id", label: "Op", width: "150px", isWide: true, cell: (row) => html`<${Id} id=${row.op_id} label="id of the op" />` },
];

/** The verification of the whole log, when it is asked for. */
function Verification() {
  const found = verified.value;
  const verify = async () => {
    verified.value = { chains: await get("/v1/oplog/verify", {}, { timeoutMs: 120_000 }), at: Date.now() };
  };
  const broken = found?.chains.filter((each) => each.problem !== null) ?? [];
  return html`${found &&
    (broken.length
      ? html`<${Badge} state="broken" text=${`${broken.length} broken: ${broken[0].node_id} at entry ${broken[0].seq}`} />`
      : html`<${Badge} state="verified" text=${`${found.chains.reduce((sum, each) => sum + each.entries, 0)} entries as they were written`} /><span class="quiet small"><${Time} ms=${found.at} /></span>`)}
    <${Act} needs="verify_chains" run=${verify}>Verify the log<//>`;
}
