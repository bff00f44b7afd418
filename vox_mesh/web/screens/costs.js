/** Costs: what agents, accounts and kinds used by day, and how much of the budgets is left. */
import { html } from "../vendor.js";
import { get } from "../app/api.js";
import { Link, route, to } from "../app/router.js";
import { useLive } from "../app/state.js";
import { Badge } from "../parts/badge.js";
import { Chart } from "../parts/chart.js";
import { NoFilters } from "../parts/filter.js";
import { Bar, Empty, Loaded, Page, Tabs } from "../parts/page.js";
import { Table } from "../parts/table.js";
import { Line } from "../parts/text.js";

/** @typedef {{currency: string | null, input_tokens: number, output_tokens: number, money: string | null, unpriced_tokens: number}} Tokens */
/** @typedef {{day: string, agent: string, account: string, kind: string, model: string, tokens: Tokens}} Spend */
/** @typedef {{name: string, money: Map<string, number>, input: number, output: number}} Total */

const BY = /** @type {const} */ (["agent", "account", "kind", "model", "day"]);
const DAYS = 30;

/** @type {Record<string, string>} */
const VERDICTS = { warn: "near its limit", no_claims: "used up: no new jobs", stop: "used up: work ends" };

export default function Costs() {
  const by = BY.find((each) => each === route.value.query.get("by")) ?? "agent";
  const since = dayBefore(DAYS - 1);
  const spent = useLive((signal) => get("/v1/budgets/tokens", {}, { signal }), ["report", "job"], "tokens");
  const budgets = useLive((signal) => get("/v1/budgets/report", { limit: 500 }, { signal }), ["report", "job", "op"], "budgets");
  return html`<${Page} title="Costs" note=${`Tokens and money, the last ${DAYS} days`}>
    <${Budgets} found=${budgets} />
    <${Tabs} label="Group by" tabs=${BY.map((each) => ({ href: to("costs", "", { by: each === "agent" ? "" : each }), text: `By ${each}`, isCurrent: each === by }))} />
    <${Loaded} of=${spent}>
      ${(/** @type {Spend[]} */ rows) => html`<${Spending} rows=${rows.filter((row) => row.day >= since)} by=${by} />`}
    <//>
  <//>`;
}

/** @param {{rows: Spend[], by: typeof BY[number]}} props */
function Spending({ rows, by }) {
  if (rows.length === 0) {
    return html`<${Empty} title="Nothing was spent" icon="costs">Jobs report their tokens with <code>usage</code>, and appear here.<//>`;
  }
  const totals = sum(rows, (row) => row[by]).sort((a, b) => (by === "day" ? b.name.localeCompare(a.name) : weight(b) - weight(a)));
  const days = new Map(sum(rows, (row) => row.day).map((each) => [each.name, each]));
  const dates = Array.from({ length: DAYS }, (_, index) => dayBefore(DAYS - 1 - index));
  const data = [dates.map((day) => Date.parse(day) / 1_000), dates.map((day) => days.get(day)?.input ?? 0), dates.map((day) => days.get(day)?.output ?? 0)];
  const series = [{ label: "Tokens in", isBars: true }, { label: "Tokens out", color: "--warn", isBars: true }];
  return html`<${Sums} rows=${rows} />
    <div class="panel"><h2>Tokens a day</h2><${Chart} label="Tokens used on each day" data=${data} series=${series} height=${180} /></div>
    <${Table} label=${`Spending by ${by}`} rows=${totals} columns=${columns(by)} keyOf=${(/** @type {Total} */ row) => row.name} />`;
}

/** What was spent lately, at a glance.
 * @param {{rows: Spend[]}} props */
function Sums({ rows }) {
  const spans = /** @type {[string, number][]} */ ([["Today", 0], ["Last 7 days", 6], [`Last ${DAYS} days`, DAYS - 1]]);
  return html`<dl class="costs-sums">
    ${spans.map(([label, days]) => {
      const since = dayBefore(days);
      const [total = { name: "", money: new Map(), input: 0, output: 0 }] = sum(rows.filter((row) => row.day >= since), () => "");
      return html`<div class="panel" key=${label}>
        <dt class="quiet small">${label}</dt>
        <dd><strong class="number">${total.money.size > 0 ? money(total) : "0"}</strong> <span class="quiet small number">${(total.input + total.output).toLocaleString("en")} tokens</span></dd>
      </div>`;
    })}
  </dl>`;
}

/** @param {string} by @returns {import("../parts/table.js").Column<Total>[]} */
function columns(by) {
  return [
    { name: "name", label: by[0]?.toUpperCase() + by.slice(1), cell: (row) => (by === "agent" ? html`<${Link} href=${to("agent", row.name)}><${Line} text=${row.name} /><//>` : html`<${Line} text=${row.name || "(none)"} />`) },
    { name: "input", label: "Tokens in", width: "110px", isRight: true, isWide: true, cell: (row) => row.input.toLocaleString("en") },
    { name: "output", label: "Tokens out", width: "110px", isRight: true, isWide: true, cell: (row) => row.output.toLocaleString("en") },
    { name: "money", label: "Money", width: "140px", isRight: true, cell: (row) => money(row) },
  ];
}

/** @param {Total} total */
function money({ money: amounts }) {
  const texts = [...amounts].map(([currency, amount]) => `${amount.toFixed(2)} ${currency}`);
  return texts.length ? texts.join(" + ") : html`<span class="quiet">no price</span>`;
}

/** @param {Total} total */
function weight({ money: amounts, input, output }) {
  return [...amounts.values()].reduce((all, each) => all + each, 0) * 1e9 + input + output;
}

/** Sum up by a name. Money of different currencies is not added.
 * @param {Spend[]} rows @param {(row: Spend) => string} nameOf @returns {Total[]} */
function sum(rows, nameOf) {
  /** @type {Map<string, Total>} */
  const totals = new Map();
  for (const row of rows) {
    const name = nameOf(row);
    const total = totals.get(name) ?? { name, money: new Map(), input: 0, output: 0 };
    totals.set(name, total);
    total.input += row.tokens.input_tokens;
    total.output += row.tokens.output_tokens;
    const { currency, money: amount } = row.tokens;
    if (currency !== null && amount !== null) total.money.set(currency, (total.money.get(currency) ?? 0) + Number(amount));
  }
  return [...totals.values()];
}

/** Budgets and how much of each is used.
 * @param {{found: {value: any, problem: unknown}}} props */
function Budgets({ found }) {
  return html`<${Loaded} of=${found}>
    ${(/** @type {{items: any[]}} */ { items }) => {
      const only = route.value.query.get("subject");
      const limited = items.filter((each) => (each.limits.length > 0 || each.max_bu !== null) && (!only || each.subject === only));
      if (only && limited.length === 0) return html`<p class="row"><span class="quiet">No budget is set for <${Line} text=${only} max=${60} />.</span><${NoFilters} names=${["subject"]} /></p>`;
      if (limited.length === 0) return html`<p class="quiet">No budget is set. To limit an agent: <code>vox-mesh budget set agent:NAME</code></p>`;
      return html`<section class="panel stack" aria-label="Budgets"><div class="row"><h2>Budgets</h2><${NoFilters} names=${["subject"]} /></div>${limited.map((each) => html`<${Budget} spending=${each} key=${each.subject} />`)}</section>`;
    }}
  <//>`;
}

/** @param {{spending: any}} props */
function Budget({ spending }) {
  /** @type {{name: string, used: number, reserved: number, most: number, unit: string}[]} */
  const limits = spending.limits.map((/** @type {any} */ each) => ({
    name: each.resource.replaceAll("_", " "),
    used: Number(each.spent),
    reserved: Number(each.reserved),
    most: Number(each.most),
    unit: each.currency ?? "",
  }));
  if (spending.max_bu !== null) limits.push({ name: "beats", used: spending.bu, reserved: 0, most: spending.max_bu, unit: "" });
  return html`<div class="costs-budget">
    <div class="row"><strong><${Subject} name=${spending.subject} /></strong>${spending.verdict !== "ok" && html`<${Badge} state="warn" tone="warn" text=${VERDICTS[spending.verdict] ?? spending.verdict} />`}</div>
    ${limits.map(
      (each) => html`<div class="costs-limit" key=${each.name}>
        <span class="small quiet">${each.name}</span>
        <${Bar} share=${each.most ? (each.used + each.reserved) / each.most : 1} label=${`${spending.subject}: ${each.name}`} />
        <span class="small number">${amount(each.used, each.unit)} of ${amount(each.most, each.unit)} ${each.unit}${each.reserved > 0 && html` <span class="quiet">+ ${amount(each.reserved, each.unit)} reserved</span>`}</span>
      </div>`,
    )}
  </div>`;
}

/** Return the day some days ago, as the API writes it.
 * @param {number} days */
function dayBefore(days) {
  return new Date(Date.now() - days * 86_400_000).toISOString().slice(0, 10);
}

/** Whose budget it is.
 * @param {{name: string}} props */
function Subject({ name }) {
  const line = html`<${Line} text=${name} max=${60} />`;
  return name.startsWith("agent:") ? html`<${Link} href=${to("agent", name.slice("agent:".length))}>${line}<//>` : line;
}

/** @param {number} value @param {string} unit */
function amount(value, unit) {
  return value.toLocaleString("en", { minimumFractionDigits: unit ? 2 : 0, maximumFractionDigits: 2 });
}
