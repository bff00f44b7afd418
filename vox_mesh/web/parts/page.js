/** The frame of a screen: its title, its actions, and what is shown while there is nothing. */
import { html, useEffect } from "../vendor.js";
import { words } from "../app/api.js";
import { Link } from "../app/router.js";
import { Icon } from "./icon.js";

/** @param {{title: string, heading?: string, note?: any, actions?: any, children?: any}} props
 * `heading`: the title on the page, where it is shorter than that of the window. */
export function Page({ title, heading = title, note, actions, children }) {
  useEffect(() => {
    document.title = `${title} · vox-mesh`;
  }, [title]);
  return html`<div class="page">
    <header class="page-head">
      <h1>${heading}</h1>
      ${note && html`<span class="quiet">${note}</span>`} ${actions && html`<div class="actions">${actions}</div>`}
    </header>
    ${children}
  </div>`;
}

/** What is read: its problem, a notice while it is not there yet, or the children with its value.
 * @param {{of: {value: any, problem: unknown}, children: (value: any) => any}} props */
export function Loaded({ of: { value, problem }, children }) {
  return html`${problem && html`<p class="problem" role="alert">${words(problem)}</p>`}${
    value !== undefined ? children(value) : !problem && html`<p class="quiet" role="status">Loading…</p>`
  }`;
}

/** Nothing to show, and what to do next.
 * @param {{title: string, icon?: string, children?: any}} props */
export function Empty({ title, icon = "check", children }) {
  return html`<div class="empty"><${Icon} name=${icon} /><strong>${title}</strong>${children && html`<div>${children}</div>`}</div>`;
}

/** Views of one screen.
 * @param {{label: string, tabs: {href: string, text: string, isCurrent: boolean}[]}} props */
export function Tabs({ label, tabs }) {
  return html`<nav class="tabs" aria-label=${label}>
    ${tabs.map(({ href, text, isCurrent }) => html`<${Link} href=${href} aria-current=${isCurrent ? "page" : undefined}>${text}<//>`)}
  </nav>`;
}

/** Names and values.
 * @param {{of: [string, any][]}} props */
export function Facts({ of }) {
  return html`<dl class="facts">
    ${of.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}
  </dl>`;
}

/** A share of a limit, or with `isProgress` of what is to be done.
 * @param {{share: number, label: string, isProgress?: boolean}} props */
export function Bar({ share, label, isProgress = false }) {
  const percent = Math.round(100 * Math.min(1, Math.max(0, share)));
  const tone = isProgress ? "" : share >= 1 ? "bad" : share >= 0.8 ? "warn" : "";
  return html`<div class=${`bar ${tone}`} role=${isProgress ? "progressbar" : "meter"} aria-label=${label} aria-valuenow=${percent} aria-valuemin="0" aria-valuemax="100">
    <i style=${{ width: `${percent}%` }}></i>
  </div>`;
}
