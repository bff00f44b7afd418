"""The token ledger: what attempts are charged for language models, in the database, and the limits on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.jobs.records import Job
from vox_mesh.model.oplog.op_names import CHARGE
from vox_mesh.model.rhythm.budgets import Budget
from vox_mesh.model.rhythm.costs import Rates
from vox_mesh.model.rhythm.reports import BarReport
from vox_mesh.model.rhythm.tokens import TokenBill, TokenTotal, TokenUsage
from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.store.rows import Row
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Script, Statement
from vox_mesh.store.store import Store

MAX_TOTALS: Final = 1_000
"""The rows of a report on tokens."""

_SQL: Final = named("spend")
_DAY_MS: Final = 86_400_000
_END_MS: Final = 2**53
_COUNTS: Final = ("input_tokens", "output_tokens", "micros", "unpriced")


class AttemptCharge(NamedTuple):
    """Tokens that an attempt has used."""

    job_id: str
    claim_token: int
    kind: str
    agent: str
    account: str
    tokens: TokenUsage
    at_ms: int

    @classmethod
    def of(cls, job: Job, agent: str, tokens: TokenUsage, at_ms: int) -> AttemptCharge:
        """Return the charge of an attempt at a job."""
        return cls(job.job_id, job.claim_token, job.kind, agent, job.account, tokens, at_ms)


class LimitStanding(NamedTuple):
    """A limit of a budget on tokens or money, what was spent, and what running attempts have reserved."""

    subject: str
    resource: str
    most: int
    reserve: int
    spent: int
    reserved: int


class SpendRow(NamedTuple):
    """The tokens of a model that an agent has used in a day, for an account and a kind of job."""

    day_ms: int
    agent_id: str
    account: str
    kind: str
    model: str
    currency: str
    total: TokenTotal


class ModelSpend(NamedTuple):
    """The tokens of a model that an agent has used today, and in this month."""

    model: str
    currency: str
    today: TokenTotal
    month: TokenTotal


class TokenLedger:
    """Charges tokens at the rates of this node, and reports what was charged."""

    def __init__(self, context: RhythmContext, rates: Rates) -> None:
        self._context = context
        self._rates = rates

    def bill(self, tokens: TokenUsage) -> TokenBill:
        """Return what tokens cost at the rates of this node."""
        return self._rates.bill(tokens)

    # --- limits ----------------------------------------------------------------------------------

    def set_limits(self, subject: str, budget: Budget, *, resets: bool = False) -> list[Statement]:
        """Return the statements that set the limits of a subject to those of its budget."""
        share = budget.thresholds.claims
        limits = {
            name: (int(limit.most * share), limit.reserve) for name, limit in budget.spend_limits.items()
        }
        values = (*self._context.mesh, subject, orjson.dumps(limits).decode())
        return [Statement(_SQL["remove_others"], values), Statement(_SQL["set"], (*values, resets))]

    async def limits(self, subject: str | None = None) -> list[LimitStanding]:
        """Return all limits and how they stand, or those of one subject."""
        values = (*self._context.mesh, subject, MAX_TOTALS)
        rows = await self._context.store.read(_SQL["limits"], values, fresh=True)
        return [LimitStanding._make(row) for row in rows if _is_readable(row)]

    # --- charging --------------------------------------------------------------------------------

    def charge(self, charges: Iterable[AttemptCharge], *, is_held: bool = False) -> list[Statement]:
        """Return the statements that charge attempts; with `is_held`, they go on after it."""
        attempts: list[dict[str, Any]] = []
        rows: list[tuple[Any, ...]] = []
        for each in charges:
            bill = self.bill(each.tokens)
            attempts.append(
                {
                    "job_id": each.job_id,
                    "claim_token": each.claim_token,
                    "agent": each.agent,
                    "account": each.account,
                    "amounts": bill.amounts(),
                    "unpriced": bill.unpriced,
                }
            )
            key = (each.agent, self._context.beat(each.at_ms).window_ms, each.account, each.kind)
            rows += [(*key, model, bill.currency, *counts, each.at_ms) for model, *counts in bill.charges]
        charged = (*self._context.mesh, orjson.dumps(attempts).decode())
        return [
            Statement(_SQL["settle"], charged),
            *([Statement(_SQL["use_reservations"], charged)] if is_held else []),
            Statement(_SQL["record"], (*self._context.mesh, orjson.dumps(rows).decode())),
        ]

    def charge_script(self, charge: AttemptCharge, *guards: Statement, is_held: bool) -> Script:
        """Return the script that charges an attempt at once, apart from its result, and logs it."""
        job = {"job_id": charge.job_id, "claim_token": charge.claim_token}
        said = {**job, "agent": charge.agent, "usage": self.bill(charge.tokens).document()}
        statements = self.charge([charge], is_held=is_held)
        return Script(*guards, *statements, op=Op(CHARGE, canonical(said)), appendable=not guards)

    # --- reports ---------------------------------------------------------------------------------

    async def totals(
        self,
        *,
        since_ms: int = 0,
        until_ms: int = _END_MS,
        agent: str | None = None,
        account: str | None = None,
        limit: int = MAX_TOTALS,
    ) -> list[SpendRow]:
        """Return the tokens by agent, account, kind, model and day, the newest day first."""
        values = (*self._context.mesh, since_ms, until_ms, agent, account, min(limit, MAX_TOTALS))
        rows = await self._context.store.read(_SQL["totals"], values, fresh=True)
        return [
            SpendRow(
                row["day_ms"],
                row["agent_id"],
                row["account"],
                row["kind"],
                row["model"],
                row["currency"],
                _total(row),
            )
            for row in rows
        ]

    async def of_subjects(
        self, subject: str | None, since_ms: int | None
    ) -> dict[str, dict[str, TokenTotal]]:
        """Return the tokens of a subject, or of all, by currency; since a time, or that of the budget."""
        values = (*self._context.mesh, subject, since_ms)
        found: dict[str, dict[str, TokenTotal]] = {}
        for row in await self._context.store.read(_SQL["of_subjects"], values, fresh=True):
            found.setdefault(row["subject"], {})[row["currency"]] = _total(row)
        return found

    async def of_agent(self, agent: str, month_ms: int) -> list[ModelSpend]:
        """Return what an agent has used of each model today, and since the start of its month."""
        today_ms = self._context.times.now_ms // _DAY_MS * _DAY_MS
        values = (*self._context.mesh, agent, month_ms, today_ms, MAX_TOTALS)
        found: dict[tuple[str, str], list[TokenTotal]] = {}
        for row in await self._context.store.read(_SQL["of_agent"], values):
            key, total = (row["model"], row["currency"]), _total(row)
            today, month = found.setdefault(key, [TokenTotal(), TokenTotal()])
            found[key] = [total if row["is_recent"] else today, month + total]
        return [ModelSpend(*key, *both) for key, both in found.items()]


async def with_spend(context: RhythmContext, reports: Sequence[BarReport]) -> list[BarReport]:
    """Return reports on bars with the tokens that were charged in them, by currency."""
    spans = orjson.dumps([(each.start_ms, each.end_ms) for each in reports]).decode()
    found: dict[int, dict[str, TokenTotal]] = {}
    for row in await context.store.read(_SQL["of_windows"], (*context.mesh, spans)):
        found.setdefault(row["start_ms"], {})[row["currency"]] = _total(row)
    return [replace(each, tokens=found.get(each.start_ms, {})) for each in reports]


async def forget_reservations(store: Store) -> None:
    """Remove the reservations of attempts that are over; they do not count any more."""
    if (await store.read(_SQL["is_any_over"], store.mesh_id)).value:
        await store.write(Script(Statement(_SQL["forget"], store.mesh_id)))


def _total(row: Row) -> TokenTotal:
    return TokenTotal(*(int(row[name] or 0) for name in _COUNTS))


def _is_readable(row: Row) -> bool:
    """Return whether the columns hold values of their kinds: only a hostile row does not."""
    return all(isinstance(row[name], str) for name in ("subject", "resource")) and all(
        type(row[name]) is int for name in ("most", "reserve", "spent", "reserved")
    )
