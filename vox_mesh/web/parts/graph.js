/** A graph that the node has laid out: it can be moved, zoomed, and walked with the keyboard. */
import { html, useEffect, useRef, useState } from "../vendor.js";
import { Link } from "../app/router.js";
import { toneOf } from "./badge.js";
import { Icon } from "./icon.js";

/**
 * @typedef {{id: string, title: string, state: string, label?: string, x: number, y: number, w: number, h: number}} GraphNode
 * @typedef {{from: string, to: string, points: [number, number][]}} GraphEdge
 * @typedef {{width: number, height: number, nodes: GraphNode[], edges: GraphEdge[], cut: number}} Layout
 */

const LEAST_SCALE = 0.6;

/** @param {{layout: Layout, label: string, hrefOf: (node: GraphNode) => string, current?: string}} props */
export function Graph({ layout, label, hrefOf, current }) {
  const frame = useRef(/** @type {HTMLElement | null} */ (null));
  const [view, setView] = useState({ x: 0, y: 0, scale: 1 });
  const fit = () => {
    const { clientWidth = 800, clientHeight = 500 } = frame.current ?? {};
    const scale = Math.min(1, Math.max(LEAST_SCALE, Math.min(clientWidth / (layout.width + 40), clientHeight / (layout.height + 40))));
    const centre = layout.nodes.find((each) => each.id === current) ?? layout.nodes[0];
    // What has no room is moved, so that the current job, or else the first one, is seen.
    const place = (/** @type {number} */ room, /** @type {number} */ size, /** @type {number} */ at) =>
      size * scale <= room ? (room - size * scale) / 2 : Math.min(20, Math.max(room - 20 - size * scale, room / 2 - at * scale));
    setView({ x: place(clientWidth, layout.width, (centre?.x ?? 0) + (centre?.w ?? 0) / 2), y: place(clientHeight, layout.height, centre?.y ?? 0), scale });
  };
  useEffect(fit, [layout.width, layout.height]);
  const zoom = (/** @type {number} */ by) => setView(({ x, y, scale }) => {
    const { clientWidth = 800, clientHeight = 500 } = frame.current ?? {};
    const next = Math.min(3, Math.max(0.05, scale * by));
    const [midX, midY] = [clientWidth / 2, clientHeight / 2];
    return { x: midX - ((midX - x) * next) / scale, y: midY - ((midY - y) * next) / scale, scale: next };
  });
  const drag = (/** @type {PointerEvent} */ event) => {
    if (event.buttons & 1) setView((before) => ({ ...before, x: before.x + event.movementX, y: before.y + event.movementY }));
  };
  const wheel = (/** @type {WheelEvent} */ event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.15 : 1 / 1.15);
  };
  const height = Math.min(640, Math.max(220, layout.height + 60));
  return html`<div class="graph" ref=${frame} style=${{ height: `${height}px` }} onPointerMove=${drag} onWheel=${wheel}>
    <svg role="group" aria-label=${label}>
      <defs><marker id="graph-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path class="arrow" d="M0 1l7 3-7 3z" /></marker></defs>
      <g transform=${`translate(${view.x} ${view.y}) scale(${view.scale})`}>
        ${layout.edges.map((each) => html`<path class="edge" marker-end="url(#graph-arrow)" key=${`${each.from} ${each.to}`} d=${`M${each.points.map((point) => point.join(" ")).join("L")}`} />`)}
        ${layout.nodes.map((each) => html`<${Box} node=${each} href=${hrefOf(each)} isCurrent=${each.id === current} key=${each.id} />`)}
      </g>
    </svg>
    <div class="tools">
      <button class="small" aria-label="Larger" onClick=${() => zoom(1.3)}><${Icon} name="plus" /></button>
      <button class="small" aria-label="Smaller" onClick=${() => zoom(1 / 1.3)}><${Icon} name="minus" /></button>
      <button class="small" aria-label="Fit" onClick=${fit}><${Icon} name="fit" /></button>
    </div>
  </div>`;
}

/** @param {{node: GraphNode, href: string, isCurrent: boolean}} props */
function Box({ node, href, isCurrent }) {
  const room = Math.max(4, Math.floor((node.w - 16) / 7));
  const title = node.title.length > room ? `${node.title.slice(0, room - 1)}…` : node.title;
  // The name begins with what can be read in the box, so that it can also be spoken; hence one text for both.
  const state = node.label ?? node.state;
  const name = `${title} ${state}${title === node.title ? "" : `: ${node.title.slice(0, 200)}`}`;
  return html`<${Link} href=${href} aria-label=${name} aria-current=${isCurrent ? "true" : undefined}>
    <g class=${`node ${toneOf(state)}`} transform=${`translate(${node.x} ${node.y})`}>
      <rect width=${node.w} height=${node.h} rx="6" stroke-dasharray=${isCurrent ? "5 3" : undefined} />
      <text y=${node.h / 2 - 2}><tspan x="8">${title}</tspan>${" "}<tspan class="state" x="8" dy="15">${state}</tspan></text>
    </g>
  <//>`;
}
