/** The current bar as a line of music: a note for each beat, grouped by phase. */
import { html } from "../../vendor.js";
import { useNarrow } from "../../parts/table.js";

const STEP = 84;
const NARROW_STEP = 36;
const LINES = [0, 1, 2, 3, 4];
const HEIGHTS = [52, 44, 36, 28];

/** @param {{beat: any, phases: Record<string, number>}} props */
export function Score({ beat, phases }) {
  const step = useNarrow() ? NARROW_STEP : STEP;
  if (!beat) return null;
  const names = Object.entries(phases).flatMap(([name, count]) => Array.from({ length: count }, () => name));
  const width = step * names.length + 40;
  const label = `Beat ${beat.beat_index} of ${beat.bar_len_beats}, phase ${beat.phase}`;
  return html`<div class="rhythm-score"><svg viewBox=${`0 0 ${width} 112`} role="img" aria-label=${label} style=${{ maxWidth: `${width}px` }}>
    ${LINES.map((line) => html`<path class="staff" d=${`M10 ${24 + 12 * line}H${width - 10}`} key=${line} />`)}
    <path class="bar-line" d=${`M10 24v48M${width - 10} 24v48`} />
    ${names.map((name, index) => html`<${Note} name=${name} at=${index} step=${step} now=${beat.beat_index - 1} isFirst=${names[index - 1] !== name} order=${Object.keys(phases).indexOf(name)} key=${index} />`)}
  </svg></div>`;
}

/** @param {{name: string, at: number, step: number, now: number, isFirst: boolean, order: number}} props */
function Note({ name, at, step, now, isFirst, order }) {
  const x = 20 + step * (at + 0.5);
  const y = HEIGHTS[order % HEIGHTS.length] ?? 44;
  const state = at < now ? "past" : at === now ? "now" : "ahead";
  return html`<g class=${`note ${state}`}>
    ${isFirst && at > 0 && html`<path class="phase-line" d=${`M${x - step / 2} 18v60`} />`}
    ${state === "now" && html`<rect class="cursor" x=${x - 15} y="14" width="32" height="68" rx="6" />`}
    <ellipse cx=${x} cy=${y} rx="7.5" ry="5.5" transform=${`rotate(-20 ${x} ${y})`} />
    <path class="stem" d=${`M${x + 7} ${y - 2}v-26`} />
    ${isFirst && html`<text x=${x - step / 2 + 6} y="102">${name}</text>`}
  </g>`;
}
