/** Health: the checks of this node, its database and replica, and how long its operations take. */
import { html, useEffect } from "../vendor.js";
import { get } from "../app/api.js";
import { session } from "../app/session.js";
import { useLive } from "../app/state.js";
import { Badge } from "../parts/badge.js";
import { Facts, Loaded, Page } from "../parts/page.js";
import { Line, Text } from "../parts/text.js";
import { duration } from "../parts/time.js";
import { Latencies } from "./health/latencies.js";

const AGAIN_MS = 5_000;
const MIB = 1_048_576;

/** @typedef {{name: string, ok: boolean, detail: string, hint: string, meaning: string}} Check */

export default function Health() {
  const found = useLive((signal) => get("/v1/health", {}, { signal }), ["nodes"], "health");
  const { reload } = found;
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && reload(), AGAIN_MS);
    return () => clearInterval(timer);
  }, [reload]);
  return html`<${Page} title="Health" note=${html`of <${Line} text=${session.value?.node_id} max=${60} />`}>
    <${Loaded} of=${found}>
      ${(/** @type {any} */ health) => html`<${Checks} checks=${health.checks} />
        <div class="columns">
          <section class="panel" aria-label="Database"><h2>Database</h2><${Facts} of=${databaseFacts(health)} /></section>
          <section class="panel" aria-label="This node"><h2>This node</h2><${Facts} of=${nodeFacts(health)} /></section>
        </div>
        <${Latencies} latencies=${health.latencies} />`}
    <//>
  <//>`;
}

/** The checks that fail come first, each with what to do.
 * @param {{checks: Check[]}} props */
function Checks({ checks }) {
  const failed = checks.filter((each) => !each.ok);
  const title = failed.length ? `${failed.length} of ${checks.length} checks fail` : `All ${checks.length} checks hold`;
  return html`<section class="panel stack" aria-label="Checks">
    <h2>${title}</h2>
    ${failed.map(
      (each) => html`<div class="health-failed" key=${each.name}>
        <${Badge} state="failed" text=${each.name} />
        <div class="stack"><${Text} text=${each.detail} max=${400} />${each.hint && html`<span class="quiet">${each.hint}</span>`}</div>
      </div>`,
    )}
    <ul class="health-checks">${checks.filter((each) => each.ok).map((each) => html`<li key=${each.name}><${Badge} state="ok" text=${each.name} /><span class="small quiet"><${Text} text=${each.detail || each.meaning} max=${200} /></span></li>`)}</ul>
  </section>`;
}

/** @param {any} health @returns {[string, any][]} */
function databaseFacts({ breaker, replica, replica_lag_ms: lag, spool, writes }) {
  return [
    ["Writes", `${writes.rate.toLocaleString("en")} a second now, ${writes.answered.toLocaleString("en")} since the start`],
    ["Failed writes", writes.failures ? html`<${Badge} state="failed" text=${String(writes.failures)} />` : "none"],
    ["Writes that wait", String(writes.waiting)],
    ["Circuit breaker", breaker === "off" ? "not needed: the database is a file" : html`<${Badge} state=${breaker === "closed" ? "ok" : "broken"} text=${breaker} />`],
    ["Replica", replica === null ? "none: the database is read itself" : `${replica.state}, ${lag === null ? "lag not known" : `${duration(lag)} behind`}`],
    ["Spool", spool === null ? null : spool.depth ? `${spool.depth} writes wait to be replayed` : "empty"],
  ];
}

/** @param {any} health @returns {[string, any][]} */
function nodeFacts({ ready, process, streams }) {
  return [
    ["State", html`<${Badge} state=${ready ? "ready" : "failed"} tone=${ready ? "good" : "bad"} shape=${ready ? "check" : "cross"} text=${ready ? "ready" : "not ready"} />`],
    ["Memory", `${Math.round(process.memory_bytes / MIB).toLocaleString("en")} MiB`],
    ["Processor time", `${duration(process.cpu_s * 1_000)} since the start`],
    ["Open streams", String(streams)],
    ["Version", session.value?.version],
  ];
}
