/** How long operations took since the node started: a histogram of each, and its median and 99th percentile. */
import { html } from "../../vendor.js";
import { Empty } from "../../parts/page.js";

/** @typedef {{le: number | null, count: number}} Bucket `count`: the values of at most `le` seconds. */
/** @typedef {{name: string, what: string, count: number, sum: number, buckets: Bucket[]}} Histogram */

const HEIGHT = 60;

/** @param {{latencies: Histogram[]}} props */
export function Latencies({ latencies }) {
  const used = latencies.filter((each) => each.count > 0);
  if (used.length === 0) return html`<${Empty} title="Nothing was measured yet" icon="clock">Times appear with the first requests, locks, messages and jobs.<//>`;
  return html`<section class="stack" aria-label="Latencies">
    <h2>How long things take</h2>
    <div class="columns">${used.map((each) => html`<${Latency} histogram=${each} key=${each.name} />`)}</div>
  </section>`;
}

/** @param {{histogram: Histogram}} props */
function Latency({ histogram }) {
  const counts = histogram.buckets.map((each, index) => each.count - (histogram.buckets[index - 1]?.count ?? 0));
  const first = counts.findIndex(Boolean);
  const last = counts.findLastIndex(Boolean);
  const shown = counts.slice(first, last + 1);
  const most = Math.max(...shown);
  const label = `${histogram.what}: half within ${quantile(histogram, 0.5)}, 99 of 100 within ${quantile(histogram, 0.99)}`;
  const width = 300 / shown.length;
  return html`<figure class="panel stack">
    <figcaption><h3>${histogram.what}</h3><span class="quiet small">${histogram.count === 1 ? "once" : `${histogram.count.toLocaleString("en")} times`} since the start</span></figcaption>
    <svg class="health-bars" viewBox=${`0 0 300 ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label=${label}>
      ${shown.map((count, index) => {
        const height = count ? Math.max(2, (HEIGHT * count) / most) : 0;
        return html`<rect x=${index * width + 1} y=${HEIGHT - height} width=${Math.max(1, width - 2)} height=${height} key=${index} />`;
      })}
    </svg>
    <div class="health-axis number" aria-hidden="true"><span>${first > 0 ? time(histogram.buckets[first - 1]?.le ?? 0) : "0 ms"}</span><span>${histogram.buckets[last]?.le === null ? "longer" : time(histogram.buckets[last]?.le ?? 0)}</span></div>
    <div class="row small number"><span>half within ${quantile(histogram, 0.5)}</span><span>99 of 100 within ${quantile(histogram, 0.99)}</span></div>
  </figure>`;
}

/** Return the limit of the bucket in which a share of the values ends.
 * @param {Histogram} histogram @param {number} share */
function quantile({ buckets, count }, share) {
  const found = buckets.find((each) => each.count >= share * count);
  const finite = buckets.findLast((each) => each.le !== null)?.le ?? 0;
  if (!found || found.le === null) return `over ${time(finite)}`;
  return time(found.le);
}

/** @param {number} seconds */
function time(seconds) {
  return seconds < 1 ? `${Number((1_000 * seconds).toPrecision(2))} ms` : `${Number(seconds.toPrecision(2))} s`;
}
