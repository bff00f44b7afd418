/** One approval: exactly what an agent asks for, and the decision. */
import { html } from "../vendor.js";
import { get, segment } from "../app/api.js";
import { Link, route, to } from "../app/router.js";
import { LOG, useLive } from "../app/state.js";
import { Badge } from "../parts/badge.js";
import { Empty, Loaded, Page } from "../parts/page.js";
import { Id } from "../parts/text.js";
import { Actions } from "./needs/actions.js";
import { Request } from "./needs/details.js";

export default function Approval() {
  const { id } = route.value;
  // What is approved is applied by an op of its own kind.
  const found = useLive((signal) => get(`/v1/approvals/${segment(id)}`, {}, { signal }), LOG, id);
  const asked = found.value;
  if (!asked && /** @type {any} */ (found.problem)?.status === 404) {
    return html`<${Page} title="Approval"><${Empty} title="There is no such approval" icon="question"><${Link} href=${to("needs")}>See what needs you<//><//><//>`;
  }
  const item = asked && { kind: "approval", id, title: `${asked.agent} asks for ${asked.operation}`, detail: asked.asks_for.join(", ") };
  return html`<${Page}
    title="Approval"
    note=${html`<span class="row">${asked && html`<${Badge} state=${asked.state} />`}<${Id} id=${id} length=${26} label="id of the approval" /></span>`}
    actions=${asked?.state === "pending" && html`<${Actions} item=${item} done=${found.reload} />`}
  >
    <${Loaded} of=${found}>${() => html`<section class="panel" aria-label="Asked for"><${Request} asked=${asked} /></section>`}<//>
  <//>`;
}
