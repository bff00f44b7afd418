/** The table of jobs, with a selection. */
import { html, useState } from "../../vendor.js";
import { go, Link, to } from "../../app/router.js";
import { may } from "../../app/session.js";
import { Badge } from "../../parts/badge.js";
import { Empty, Loaded } from "../../parts/page.js";
import { Table, TwoLines } from "../../parts/table.js";
import { Id, Line } from "../../parts/text.js";
import { duration, Since, Time } from "../../parts/time.js";
import { BulkBar } from "./bulk.js";
import { counted } from "./counts.js";
import { keyOf, noteOf, shownState } from "./model.js";
import { useRows } from "./rows.js";

/** @typedef {import("./model.js").Row} Row */

/** @param {{filter: import("./model.js").Filter, states: Record<string, number> | undefined}} props */
export function JobTable({ filter, states }) {
  const rows = useRows(filter);
  const [chosen, setChosen] = useState(/** @type {Map<string, Row>} */ (new Map()));
  const maySelect = may("retry_jobs") || may("abort_jobs");
  const toggle = (/** @type {Row[]} */ some, /** @type {boolean} */ isChosen) => {
    const next = new Map(chosen);
    for (const row of some) isChosen ? next.set(row.job_id, row) : next.delete(row.job_id);
    setChosen(next);
  };
  return html`<${Loaded} of=${rows}>${(/** @type {Row[]} */ found) => {
    if (found.length === 0 && !rows.more) return html`<${Nothing} filter=${filter} />`;
    const columns = maySelect ? [selection(found, chosen, toggle), ...COLUMNS] : COLUMNS;
    const current = new Map([...chosen.values()].map((row) => [row.job_id, row]));
    for (const row of found) if (current.has(row.job_id)) current.set(row.job_id, row);
    return html`${maySelect && html`<${BulkBar} filter=${filter} states=${states} chosen=${current} clear=${() => setChosen(new Map())} />`}
      <${Table} label="Jobs" rows=${found} columns=${columns} keyOf=${keyOf} more=${rows.more} shows=${rows.shows}
        open=${(/** @type {Row} */ row) => go(to("job", row.job_id))}
        foot=${rows.more ? `The newest ${counted(found.length)}. More are read as you scroll.` : counted(found.length)} />`;
  }}<//>`;
}

/** @param {{filter: import("./model.js").Filter}} props */
function Nothing({ filter }) {
  if (Object.values(filter).some(Boolean)) return html`<${Empty} title="No job matches" icon="search"><${Link} href=${to("jobs")}>Show all jobs<//><//>`;
  return html`<${Empty} title="There are no jobs yet" icon="jobs">${may("schedule_jobs") ? html`<${Link} href=${to("jobs", "", { new: "1" })}>Schedule the first one<//>` : "Agents and people schedule them."}<//>`;
}

/** Return the column of check boxes.
 * @param {Row[]} rows @param {Map<string, Row>} chosen @param {(rows: Row[], isChosen: boolean) => void} toggle
 * @returns {import("../../parts/table.js").Column<Row>} */
function selection(rows, chosen, toggle) {
  const isChecked = (/** @type {Event} */ event) => /** @type {HTMLInputElement} */ (event.currentTarget).checked;
  const areAll = chosen.size > 0 && rows.every((row) => chosen.has(row.job_id));
  return {
    name: "selection",
    label: html`<input type="checkbox" aria-label=${`Select the ${counted(rows.length)} read so far`} checked=${areAll} onChange=${(/** @type {Event} */ event) => toggle(rows, isChecked(event))} />`,
    width: "20px",
    cell: (row) => html`<input type="checkbox" aria-label=${`Select ${row.kind.slice(0, 80)} ${row.job_id.slice(0, 8)}`} checked=${chosen.has(row.job_id)} onChange=${(/** @type {Event} */ event) => toggle([row], isChecked(event))} />`,
  };
}

/** @type {import("../../parts/table.js").Column<Row>[]} */
const COLUMNS = [
  { name: "state", label: "State", width: "112px", isWide: true, cell: (row) => html`<${Badge} state=${shownState(row)} />` },
  { name: "kind", label: "Job", width: "minmax(0, 2fr)", cell: (row) => html`<span class="jobs-name">${nameOf(row)}<span class="quiet small"><${Line} text=${noteOf(row)} max=${140} /></span></span>`, narrow: (row) => html`<${TwoLines} top=${html`${nameOf(row)}<${Line} text=${noteOf(row)} max=${80} />`} below=${html`<${Badge} state=${shownState(row)} /><${Time} ms=${row.created_ms} />${row.agent && html`<${Line} text=${row.agent} max=${40} />`}`} />` },
  { name: "id", label: "Id", width: "128px", isWide: true, cell: (row) => html`<${Id} id=${row.job_id} length=${8} label="job's id" />` },
  { name: "by", label: "Agent or node", width: "minmax(0, 130px)", isWide: true, cell: claimerOf },
  { name: "attempts", label: "Attempts", width: "68px", isRight: true, isWide: true, cell: (row) => `${row.attempts} of ${row.max_attempts}` },
  { name: "took", label: "Took", width: "64px", isRight: true, isWide: true, cell: took },
  { name: "scheduled", label: "Scheduled", width: "92px", isRight: true, isWide: true, cell: (row) => html`<${Time} ms=${row.created_ms} />` },
];

/** @param {Row} row */
function nameOf({ job_id: id, kind }) {
  return html`<${Link} href=${to("job", id)}><${Line} text=${kind} max=${80} /><//>`;
}

/** @param {Row} row */
function claimerOf({ agent, claimer }) {
  if (agent) return html`<${Link} href=${to("agent", agent)}><${Line} text=${agent} max=${60} /><//>`;
  return claimer ? html`<${Line} text=${claimer} max=${60} />` : html`<span class="quiet">–</span>`;
}

/** @param {Row} row */
function took(row) {
  if (row.started_ms === null) return html`<span class="quiet">–</span>`;
  return row.ended_ms === null ? html`<${Since} ms=${row.started_ms} />` : duration(row.ended_ms - row.started_ms);
}
