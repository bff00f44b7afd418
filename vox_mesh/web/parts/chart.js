/** Charts by uPlot, which is read when the first one is drawn. A table beside each says the same in text. */
import { html, useEffect, useRef, useState } from "../vendor.js";

/** @type {Promise<any> | null} */
let library = null;

function load() {
  if (library === null) {
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = "/ui/static/uplot.css";
    document.head.append(style);
    library = import("../uplot.js").then((module) => module.default);
  }
  return library;
}

/**
 * @param {{label: string, data: (number | null)[][], series: {label: string, color?: string, isBars?: boolean}[], height?: number}} props
 * `data`: the values of x, and then those of each series.
 */
export function Chart({ label, data, series, height = 200 }) {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const drawn = useRef(/** @type {any} */ (null));
  const [theme, setTheme] = useState(0);
  useEffect(() => {
    const change = () => setTheme((before) => before + 1); // a canvas keeps its colours
    addEventListener("vox-theme", change);
    return () => removeEventListener("vox-theme", change);
  }, []);
  const shape = JSON.stringify([series, height, theme]);
  useEffect(() => {
    let isWanted = true;
    load().then((uPlot) => {
      if (!isWanted || !place.current) return;
      drawn.current = new uPlot(options(uPlot, place.current, series, height), data, place.current);
    });
    const watching = new ResizeObserver(() => drawn.current?.setSize({ width: place.current?.clientWidth ?? 300, height }));
    if (place.current) watching.observe(place.current);
    return () => {
      isWanted = false;
      watching.disconnect();
      drawn.current?.destroy();
      drawn.current = null;
    };
  }, [shape]);
  useEffect(() => drawn.current?.setData(data), [data]);
  return html`<div role="img" aria-label=${label} ref=${place} style=${{ minHeight: `${height}px`, overflow: "hidden" }}></div>`;
}

/** @param {any} uPlot @param {HTMLElement} place @param {{label: string, color?: string, isBars?: boolean}[]} series @param {number} height */
function options(uPlot, place, series, height) {
  const style = getComputedStyle(document.documentElement);
  const color = (/** @type {string} */ name) => resolved(style.getPropertyValue(name).trim() || name);
  const axis = { stroke: color("--quiet"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } };
  const isBars = series.some((each) => each.isBars);
  return {
    width: place.clientWidth || 300,
    height,
    scales: { x: { range: isBars ? padded : undefined } },
    axes: [axis, { ...axis, size: 64, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map(short) }],
    legend: { show: series.length > 1 },
    cursor: { show: true, drag: { x: false, y: false } },
    series: [
      { label: "At", value: (/** @type {any} */ _, /** @type {number | null} */ at) => (at === null ? "" : new Date(1_000 * at).toLocaleString()) },
      ...series.map((each) => {
        const stroke = color(each.color ?? "--accent");
        return each.isBars
          ? { label: each.label, value: counted, stroke, fill: stroke, paths: uPlot.paths.bars({ size: [0.7, 40] }), points: { show: false } }
          : { label: each.label, value: counted, stroke, width: 2, points: { show: false } };
      }),
    ],
  };
}

/** Leave room for the first and the last bar.
 * @param {any} plot @param {number} from @param {number} to */
function padded(plot, from, to) {
  const half = (to - from) / Math.max(1, 2 * (plot.data[0].length - 1)) || 43_200;
  return [from - half, to + half];
}

/** @param {any} _ @param {number | null} value */
function counted(_, value) {
  return value === null ? "" : value.toLocaleString("en");
}

const SHORT = new Intl.NumberFormat("en", { notation: "compact" });

/** @param {number} value */
function short(value) {
  return SHORT.format(value);
}

/** Return a colour that a canvas knows: `light-dark()` is resolved by the page.
 * @param {string} text */
function resolved(text) {
  const probe = document.createElement("i");
  probe.style.color = text;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}
