/** Jobs: a table, a board or a graph, with filters in the address and actions on everything that matches. */
import { html, useEffect } from "../vendor.js";
import { refine, route, to } from "../app/router.js";
import { useLive } from "../app/state.js";
import { Act } from "../parts/button.js";
import { Icon } from "../parts/icon.js";
import { Page, Tabs } from "../parts/page.js";
import { Board } from "./jobs/board.js";
import { countsOf, readCounts } from "./jobs/counts.js";
import { Filters } from "./jobs/filters.js";
import { JobsGraph } from "./jobs/graph.js";
import { JobTable } from "./jobs/list.js";
import { filterOf } from "./jobs/model.js";
import { scheduleJob } from "./jobs/schedule.js";

const VIEWS = /** @type {const} */ ([["", "Table"], ["board", "Board"], ["graph", "Graph"]]);

export default function Jobs() {
  const { query } = route.value;
  const filter = filterOf(query);
  const view = query.get("view") ?? "";
  const counts = useLive(() => readCounts(filter.kind), ["job"], filter.kind ?? "");
  const kinds = (counts.value ?? []).map((each) => each.kind);
  const isNew = query.get("new") === "1";
  useEffect(() => {
    if (isNew) void scheduleJob(kinds, filter.kind ?? "").finally(() => refine({ new: "" }));
  }, [isNew]);
  const tabs = VIEWS.map(([name, text]) => ({
    href: to("jobs", "", { ...Object.fromEntries(query), view: name, new: "" }),
    text,
    isCurrent: view === name,
  }));
  const schedule = html`<${Act} needs="schedule_jobs" class="main-action" run=${async () => refine({ new: "1" })}><${Icon} name="plus" />Schedule a job<//>`;
  // Counts are by kind and state: with another filter they would say something else than the list.
  const states = filter.node || filter.agent || filter.run ? undefined : countsOf(counts.value);
  return html`<${Page} title="Jobs" actions=${schedule}>
    <${Tabs} label="Views" tabs=${tabs} />
    ${view !== "graph" && html`<${Filters} filter=${filter} states=${states} kinds=${kinds} />`}
    ${view === "board" ? html`<${Board} filter=${filter} states=${states} />` : view === "graph" ? html`<${JobsGraph} run=${filter.run ?? ""} />` : html`<${JobTable} filter=${filter} states=${states} key=${JSON.stringify(filter)} />`}
  <//>`;
}
