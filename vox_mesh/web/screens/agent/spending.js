/** What an agent has spent, against its budget. */
import { html } from "../../vendor.js";
import { Link, to } from "../../app/router.js";
import { Bar } from "../../parts/page.js";
import { Line } from "../../parts/text.js";

/**
 * @typedef {{currency: string | null, input_tokens: number, output_tokens: number, money: string | null}} Tokens
 * @typedef {{resource: string, most: string, spent: string, reserved: string, currency: string | null}} Limit
 */

/** @param {{agent: {budget: Limit[], spend: {model: string, today: Tokens, month: Tokens}[]}}} props */
export function Spending({ agent: { budget, spend } }) {
  return html`<section class="panel stack">
    <h2>Spending</h2>
    ${budget.length === 0 && html`<p class="quiet">It has no budget of its own. <${Link} href=${to("costs")}>See the costs<//></p>`}
    ${budget.map((each) => html`<${Budget} limit=${each} key=${each.resource} />`)}
    ${spend.length > 0 &&
    html`<table class="agent-spend">
      <thead><tr><th scope="col">Model</th><th scope="col">Today</th><th scope="col">This month</th></tr></thead>
      <tbody>
        ${spend.map((each) => html`<tr key=${each.model}><td><${Line} text=${each.model} max=${60} /></td><td>${text(each.today)}</td><td>${text(each.month)}</td></tr>`)}
      </tbody>
    </table>`}
  </section>`;
}

/** @param {{limit: Limit}} props */
function Budget({ limit }) {
  const { resource, currency } = limit;
  const [spent, reserved, most] = [Number(limit.spent), Number(limit.reserved), Number(limit.most)];
  const shown = (/** @type {number} */ value) => (currency ? value.toFixed(2) : value.toLocaleString("en"));
  return html`<div class="stack">
    <div class="row"><span>${resource.replaceAll("_", " ")}</span><span class="number quiet">${shown(spent)} of ${shown(most)} ${currency}${reserved > 0 && ` (${shown(reserved)} reserved)`}</span></div>
    <${Bar} share=${most > 0 ? (spent + reserved) / most : 1} label=${`Used of the budget of ${resource}`} />
  </div>`;
}

/** @param {Tokens} tokens */
function text({ money, currency, input_tokens: read, output_tokens: written }) {
  const count = (read + written).toLocaleString("en");
  return money === null ? `${count} tokens` : html`${Number(money).toFixed(2)} ${currency}<br /><span class="quiet small">${count} tokens</span>`;
}
