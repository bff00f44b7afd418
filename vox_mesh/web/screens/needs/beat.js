/** The beat of the mesh as a line, and who is there. */
import { html } from "../../vendor.js";
import { Link, to } from "../../app/router.js";
import { mesh } from "../../app/state.js";
import { connection } from "../../app/stream.js";
import { Line } from "../../parts/text.js";

const MAX_DOTS = 32;

export function BeatLine() {
  const beat = mesh.beats?.value;
  const nodes = mesh.nodes?.value;
  const agents = mesh.agents?.value;
  if (!beat && !nodes) return null;
  return html`<section class="needs-beat" aria-label="The mesh now">
    ${beat && html`<${Dots} at=${beat.beat_index} of=${beat.bar_len_beats} /><span class="number">Beat ${beat.beat_index} of ${beat.bar_len_beats}</span><strong><${Line} text=${beat.phase} max=${40} /></strong>
      <span class="quiet number">${Math.round(beat.tempo_bpm * 10) / 10} beats a minute</span>`}
    <span class="needs-there">
      ${nodes && html`<${Link} href=${to("fleet")}>${several(nodes.filter(isUp).length, "node")} up<//>`}
      ${agents && html`<${Link} href=${to("fleet")}>${several(agents.length, "agent")}<//>`}
      <span class="quiet">${connection.value === "live" ? "live" : "connecting…"}</span>
    </span>
  </section>`;
}

/** @param {{state: string}} node */
function isUp({ state }) {
  return state !== "dead" && state !== "left";
}

/** @param {number} count @param {string} noun */
function several(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

/** @param {{at: number, of: number}} props */
function Dots({ at, of }) {
  if (of > MAX_DOTS) return null;
  return html`<span class="needs-dots" aria-hidden="true">${Array.from({ length: of }, (_, index) => html`<i class=${index + 1 === at ? "now" : index + 1 < at ? "past" : ""}></i>`)}</span>`;
}
