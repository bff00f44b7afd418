/** One conflict: what each side wants, and the decision. Others may decide first: then it says so. */
import { html, useRef, useState } from "../../vendor.js";
import { Problem, get, getText, segment, send, words } from "../../app/api.js";
import { Link, to } from "../../app/router.js";
import { may, session } from "../../app/session.js";
import { mesh, useLive } from "../../app/state.js";
import { Badge } from "../../parts/badge.js";
import { Icon } from "../../parts/icon.js";
import { Facts, Loaded, Page } from "../../parts/page.js";
import { Id, Line, Text } from "../../parts/text.js";
import { Time } from "../../parts/time.js";
import { toast } from "../../parts/toast.js";
import { Columns } from "./merge.js";
import { columnsOf, exactly, mergedSide, resolutionOf, shown, takenSide } from "./sides.js";

/** @typedef {import("./sides.js").Conflict} Conflict */
/** @typedef {import("./sides.js").Choice} Choice */

/** The words for each resolution. @type {Record<string, string>} */
const RESOLUTIONS = { left: "took the left side", right: "kept the right side", merge: "merged both sides", value: "chose values by column" };

/** Read a conflict, with every value as it is.
 * @param {string} id @returns {Promise<Conflict>} */
export async function readConflict(id) {
  return exactly(await getText(`/v1/conflicts/${segment(id)}`));
}

/** @param {{id: string}} props */
export function ConflictDetail({ id }) {
  const found = useLive(() => readConflict(id), ["conflict", "conflicts"], id);
  const conflict = found.value;
  return html`<${Page} title="Conflict" note=${html`<${Id} id=${id} length=${30} label="id of the conflict" />`} actions=${html`<${Link} class="button" href=${to("conflicts")}>All conflicts<//>`}>
    <${Loaded} of=${found}>${() => conflict && html`<${About} conflict=${conflict} /><${Decision} conflict=${conflict} reload=${found.reload} />`}<//>
  <//>`;
}

/** @param {{conflict: Conflict}} props */
function About({ conflict }) {
  const who = (/** @type {string | null} */ node, /** @type {string | null} */ agent = null) => html`<${Line} text=${agent ?? node ?? "another writer"} max=${80} />${agent && html` <span class="quiet">at <${Line} text=${node} max=${60} /></span>`}`;
  return html`<section class="panel" aria-label="About the conflict">
    <${Facts}
      of=${[
        ["Row", html`<${Line} text=${conflict.table_name} max=${80} /> <code><${Line} text=${keyText(conflict.row_key)} max=${120} /></code>`],
        ["Left", html`${who(conflict.left_node, conflict.left_agent)} <span class="quiet">wanted to write it, <${Time} ms=${Date.parse(conflict.created_at)} /></span>`],
        ["Right", conflict.right ? html`${who(conflict.right_node)} <span class="quiet">had written it before</span>` : html`<span>The row was deleted before.</span>`],
        ["For", conflict.deferred_to && html`<${Line} text=${conflict.deferred_to} max=${80} />`],
        ["State", html`<${Badge} state=${conflict.state} />`],
      ]}
    />
  </section>`;
}

/** Return the key of a row as text.
 * @param {Record<string, any>} key */
export function keyText(key) {
  return Object.entries(key).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");
}

/** The choice while it is open, and what became of it.
 * @param {{conflict: Conflict, reload: () => void}} props */
function Decision({ conflict, reload }) {
  const wasOpen = useRef(conflict.state === "open");
  const [isMine, setMine] = useState(false);
  if (conflict.state !== "open") return html`<${Outcome} conflict=${conflict} isSurprise=${wasOpen.current && !isMine} isMine=${isMine} />`;
  return html`<${Choosing} conflict=${conflict} done=${() => (setMine(true), reload())} reload=${reload} />`;
}

/** @param {{conflict: Conflict, isSurprise: boolean, isMine: boolean}} props */
function Outcome({ conflict, isSurprise, isMine }) {
  const columns = columnsOf(conflict);
  const entry = useLive(() => entryOf(conflict.conflict_id), [], conflict.conflict_id).value;
  const who = isMine ? "You" : html`<${Line} text=${nameOf(conflict)} max=${80} />`;
  const next = (mesh.conflicts.value ?? []).find((/** @type {{conflict_id: string}} */ each) => each.conflict_id !== conflict.conflict_id);
  return html`<section class=${isSurprise ? "panel conflicts-outcome surprise" : "panel conflicts-outcome"} role="status">
      <h2><${Icon} name="check" />${who} ${RESOLUTIONS[conflict.resolution ?? ""] ?? "resolved it"}</h2>
      <p><${Time} ms=${conflict.resolved_at ? Date.parse(conflict.resolved_at) : null} />${conflict.reason && html`: <${Text} text=${conflict.reason} max=${500} />`}</p>
      ${conflict.resolution === "value" && entry?.payload.value && html`<${Facts} of=${Object.entries(entry.payload.value).map(([name, value]) => [name, html`<code><${Text} text=${shown(value)} max=${400} /></code>`])} />`}
      ${isSurprise && html`<p><strong>It was resolved while you were looking at it.</strong> Nothing of your choice was written.</p>`}
      <div class="actions">
        ${next && html`<${Link} class="button" href=${to("conflicts", next.conflict_id)}>Next open conflict<//>`}
        <${Link} class="button" href=${to("log", "", { kind: "ResolveConflict", op: entry?.op_id })}>See it in the log<//>
      </div>
    </section>
    <${Columns} columns=${columns} takenOf=${(/** @type {import("./sides.js").Column} */ each) => takenSide(conflict.resolution, each)} />`;
}

/** Return the entry of the log that resolved a conflict, if it is one of the last.
 * @param {string} id @returns {Promise<any>} */
async function entryOf(id) {
  const { items } = await get("/v1/oplog", { kind: "ResolveConflict", order: "newest", limit: 100 });
  return items.find((/** @type {any} */ each) => each.accepted && each.payload?.conflict_id === id) ?? null;
}

/** @param {Conflict} conflict */
function nameOf({ resolved_agent, resolved_by }) {
  const name = resolved_agent ?? resolved_by ?? "";
  return name === `person:${session.value?.name}` ? "You" : name.replace(/^person:/, "");
}

/** @param {{conflict: Conflict, done: () => void, reload: () => void}} props */
function Choosing({ conflict, done, reload }) {
  const [moved, setMoved] = useState(/** @type {{now: any, onto: string} | null} */ (null));
  const [choices, setChoices] = useState(/** @type {Record<string, Choice>} */ ({}));
  const [problem, setProblem] = useState("");
  const [isBusy, setBusy] = useState(false);
  const current = moved ? { ...conflict, right: moved.now } : conflict;
  const columns = columnsOf(current);
  const isWriter = may("resolve_conflict");
  const takeAll = (/** @type {"left" | "right" | "merge"} */ side) =>
    setChoices(Object.fromEntries(columns.map((each) => [each.name, { side: side === "merge" || each[side] === undefined ? mergedSide(each) : side }])));
  const resolve = async (/** @type {any} */ request, /** @type {string} */ reason) => {
    setBusy(true);
    setProblem("");
    try {
      await send("POST", `/v1/conflicts/${segment(conflict.conflict_id)}/resolve`, { ...request, reason: reason || null, onto: moved?.onto });
      toast("The conflict is resolved.");
      done();
    } catch (error) {
      if (error instanceof Problem && error.code === "row_moved") setMoved(/** @type {any} */ (error.document));
      else if (error instanceof Problem && error.code === "already_resolved") reload();
      else setProblem(words(error));
    } finally {
      setBusy(false);
    }
  };
  const submit = (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const reason = String(new FormData(/** @type {HTMLFormElement} */ (event.currentTarget)).get("reason") ?? "").trim();
    try {
      const taken = /** @type {HTMLButtonElement | null} */ (event.submitter)?.value;
      void resolve(taken ? { take: taken } : resolutionOf(columns, choices), reason);
    } catch (error) {
      setProblem(words(error));
    }
  };
  return html`<form class="stack" onSubmit=${submit}>
    ${moved && html`<p class="conflicts-moved" role="alert"><${Icon} name="clock" /><span><strong>The row has changed since.</strong> Nothing was written. The right side is the row ${moved.now ? "as it is now" : "which is deleted now"}: check it, then resolve again.</span></p>`}
    ${isWriter && current.right && html`<div class="row conflicts-all"><span class="quiet">Choose for all columns:</span>
      <button type="button" class="small" onClick=${() => takeAll("left")}>Left</button>
      <button type="button" class="small" onClick=${() => takeAll("right")}>Right</button>
      <button type="button" class="small" onClick=${() => takeAll("merge")}>What each side changed</button>
    </div>`}
    <${Columns} columns=${columns} choices=${choices} choose=${isWriter && current.right ? (/** @type {string} */ name, /** @type {Choice} */ choice) => setChoices((before) => ({ ...before, [name]: { ...before[name], ...choice } })) : undefined} />
    ${isWriter && html`<div class="panel conflicts-resolve">
      <label class="field"><span>Reason</span><input name="reason" maxlength="500" autocomplete="off" /><small>The op log keeps it, with your name.</small></label>
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}
      <div class="actions">
        ${current.right
          ? html`<button class="main-action" disabled=${isBusy}>Resolve</button>`
          : html`<button class="main-action" value="left" disabled=${isBusy}>Write the row again</button><button value="right" disabled=${isBusy}>Leave it deleted</button>`}
      </div>
    </div>`}
  </form>`;
}
