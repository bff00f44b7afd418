/** Conflicts: optimistic writes of one row that wait for a decision. */
import { html } from "../vendor.js";
import { Link, go, route, to } from "../app/router.js";
import { Badge } from "../parts/badge.js";
import { Empty, Loaded, Page, Tabs } from "../parts/page.js";
import { usePages } from "../parts/pages.js";
import { Table } from "../parts/table.js";
import { Line } from "../parts/text.js";
import { Time } from "../parts/time.js";
import { ConflictDetail, keyText } from "./conflicts/detail.js";

/** @typedef {import("./conflicts/sides.js").Conflict} Conflict */

/** @type {import("../parts/table.js").Column<Conflict>[]} */
const COLUMNS = [
  { name: "row", label: "Row", width: "minmax(0, 2fr)", cell: (row) => html`<${Link} href=${to("conflicts", row.conflict_id)}><${Line} text=${`${row.table_name} ${keyText(row.row_key)}`} max=${120} /><//>` },
  { name: "left", label: "Left wants", isWide: true, cell: (row) => (row.left_agent ? html`<${Link} href=${to("agent", row.left_agent)}><${Line} text=${row.left_agent} max=${60} /><//>` : html`<${Line} text=${row.left_node} max=${60} />`) },
  { name: "right", label: "Right has", isWide: true, cell: (row) => (row.right ? html`<${Line} text=${row.right_node ?? "another writer"} max=${60} />` : "deleted it") },
  { name: "resolution", label: "Decision", isWide: true, cell: (row) => row.resolution && html`<${Line} text=${`${row.resolution} by ${(row.resolved_agent ?? row.resolved_by ?? "").replace(/^person:/, "")}`} max=${80} />` },
  { name: "since", label: "Since", width: "100px", cell: (row) => html`<${Time} ms=${Date.parse(row.created_at)} />` },
  { name: "state", label: "State", width: "110px", cell: (row) => html`<${Badge} state=${row.state} />` },
];

export default function Conflicts() {
  const { id } = route.value;
  return id ? html`<${ConflictDetail} id=${id} />` : html`<${ConflictList} />`;
}

function ConflictList() {
  const isAll = route.value.query.get("all") !== null;
  const found = usePages("/v1/conflicts", isAll ? {} : { open: "true" }, ["conflict", "conflicts"], (/** @type {Conflict} */ row) => row.conflict_id);
  const tabs = [
    { href: to("conflicts"), text: "Open", isCurrent: !isAll },
    { href: to("conflicts", "", { all: "1" }), text: "All", isCurrent: isAll },
  ];
  const columns = isAll ? COLUMNS : COLUMNS.filter((each) => each.name !== "resolution" && each.name !== "state");
  return html`<${Page} title="Conflicts" note="Two writers changed one row from the same version">
    <${Tabs} label="Which conflicts" tabs=${tabs} />
    <${Loaded} of=${found}>
      ${(/** @type {Conflict[]} */ rows) =>
        rows.length === 0
          ? html`<${Empty} title=${isAll ? "There has been no conflict" : "No open conflict"}>Writers that lose a race with the strategy <code>manual</code> leave their change here.<//>`
          : html`<${Table} label="Conflicts" rows=${rows} columns=${columns} keyOf=${(/** @type {Conflict} */ row) => row.conflict_id} more=${found.more} open=${(/** @type {Conflict} */ row) => go(to("conflicts", row.conflict_id))} />`}
    <//>
  <//>`;
}
