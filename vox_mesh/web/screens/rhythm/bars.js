/** The bars before this one: what was delivered, what took too long, and the tempo. */
import { html } from "../../vendor.js";
import { Badge } from "../../parts/badge.js";
import { Chart } from "../../parts/chart.js";
import { Empty, Loaded } from "../../parts/page.js";
import { usePages } from "../../parts/pages.js";
import { Table } from "../../parts/table.js";
import { Time } from "../../parts/time.js";

/** @typedef {{window_id: string, start_ms: number, end_ms: number, tempo_bpm: number, bars: number, is_missing: boolean, deliverables: number, overruns: number, reporters: number, promises: Record<string, number>, alarms: {name: string, value: number, threshold: number}[]}} Report */

export function Bars() {
  const pages = usePages("/v1/rhythm/reports", {}, ["report"], (/** @type {Report} */ row) => String(row.start_ms));
  return html`<section class="stack" aria-label="Bars">
    <h2>Bars</h2>
    <${Loaded} of=${pages}>
      ${(/** @type {Report[]} */ rows) => (rows.length === 0 ? html`<${Empty} title="No bar has ended yet" icon="clock">The first report comes with the next downbeat.<//>` : html`<${Reports} rows=${rows} more=${pages.more} />`)}
    <//>
  </section>`;
}

/** @param {{rows: Report[], more: (() => void) | null}} props */
function Reports({ rows, more }) {
  const ordered = rows.toReversed();
  const data = [ordered.map((each) => each.start_ms / 1_000), ordered.map((each) => each.deliverables), ordered.map((each) => each.overruns)];
  const series = [{ label: "Delivered", isBars: true }, { label: "Overruns", color: "--warn" }];
  return html`<div class="panel"><${Chart} label="Deliverables and overruns of each bar" data=${data} series=${series} height=${150} /></div>
    <${Table} label="Bars" rows=${rows} columns=${COLUMNS} keyOf=${(/** @type {Report} */ row) => String(row.start_ms)} more=${more} height=${360} />`;
}

/** @type {import("../../parts/table.js").Column<Report>[]} */
const COLUMNS = [
  { name: "start", label: "Began", width: "minmax(0, 130px)", cell: (row) => html`<${Time} ms=${row.start_ms} />` },
  { name: "bars", label: "Bars", width: "60px", isRight: true, isWide: true, cell: (row) => row.bars },
  { name: "tempo", label: "Beats a minute", width: "110px", isRight: true, isWide: true, cell: (row) => Math.round(10 * row.tempo_bpm) / 10 },
  { name: "delivered", label: "Delivered", width: "72px", isRight: true, cell: (row) => row.deliverables },
  { name: "overruns", label: "Overruns", width: "72px", isRight: true, isWide: true, cell: (row) => row.overruns },
  { name: "promises", label: "Promises", isWide: true, cell: (row) => Object.entries(row.promises).filter(([, count]) => count > 0).map(([name, count]) => `${count} ${name}`).join(", ") || html`<span class="quiet">–</span>` },
  { name: "alarms", label: "Alarms", cell: (row) => (row.is_missing ? html`<${Badge} state="gone" text="not examined" />` : html`<span class="row one-line">${row.alarms.map((each) => html`<${Alarm} of=${each} key=${each.name} />`)}</span>`) },
];

/** @param {{of: Report["alarms"][number]}} props */
function Alarm({ of: { name, value, threshold } }) {
  const exact = (/** @type {number} */ each) => each.toLocaleString("en", { maximumFractionDigits: 2 });
  return html`<span title=${`${exact(value)}, and ${exact(threshold)} is allowed`}><${Badge} state="overdue" text=${name.replaceAll("_", " ")} /></span>`;
}
