"""Budgets in the database: limits of agents and accounts, and recorded spending."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import BadSettings, BadValue, MeshError, NotKnown
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.json_text import read_stored
from vox_mesh.model.oplog.op_names import REMOVE_BUDGET, SET_BUDGET
from vox_mesh.model.rhythm.budgets import (
    Budget,
    Verdict,
    account_of,
    agent_of,
    capped,
    capped_waits,
    checked_subject,
    stricter,
    verdict,
    verdict_on_spend,
)
from vox_mesh.model.rhythm.costs import PhraseBegin, PhraseEnd, PhraseOutcome, Rates, Resources, parse_rates
from vox_mesh.model.rhythm.tempo import Timeline
from vox_mesh.model.rhythm.tokens import TokenTotal
from vox_mesh.oplog.grants.reservations import settle
from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.rhythm.token_ledger import LimitStanding, TokenLedger
from vox_mesh.store.rows import Row
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Script, Statement

_log = logging.getLogger(__name__)

_SQL: Final = named("budgets")

_LOST_AFTER_MS: Final = 10_000  # an end that was not recorded by then is lost
_MAX_LOST: Final = 100
_WORK: Final = "work"
_BLOCKING_VERDICTS: Final = (Verdict.NO_CLAIMS, Verdict.STOP)


def read_rates(path: Path | None) -> Rates:
    """Read the rates of a file; without one, a beat costs 1 and everything else nothing."""
    if path is None:
        return Rates()
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BadSettings(
            f"VOX_MESH_RATES: {path} can't be read: {error.strerror}",
            hint="name a file, or unset the variable",
        ) from None
    return parse_rates(text, str(path))


@dataclass(frozen=True)
class SetBudget:
    """A budget, its subject, and the time from which spending counts."""

    subject: str
    budget: Budget
    since_ms: int


class BudgetStanding(NamedTuple):
    """A budget, the beats spent from it, and the tokens and money, by resource."""

    budget: Budget
    since_ms: int
    bu: float
    spent: Mapping[str, int] = {}

    def verdict(self, timeline: Timeline, now_ms: int) -> Verdict:
        """Return the verdict on the spending and the time."""
        end_ms = self.budget.hard_end_ms(timeline, self.since_ms)
        if end_ms is not None and now_ms >= end_ms:
            return Verdict.STOP
        return stricter(verdict(self.bu, self.budget), verdict_on_spend(self.spent, self.budget))


@dataclass(frozen=True)
class Spending:
    """The spending of a subject."""

    subject: str
    phrases: int
    bu: float
    cost: float
    resources: Resources
    budget: Budget | None
    since_ms: int | None
    verdict: Verdict
    ecu: float | None = None
    """An estimate in effective compute units; without a normaliser in the rates, there is none."""
    limits: Sequence[LimitStanding] = ()
    """The limits on tokens and money, and how they stand."""
    tokens: Mapping[str, TokenTotal] = field(default_factory=dict)
    """Used tokens and their price, by currency."""


@dataclass(slots=True)
class _Snapshot:
    """All standings when last read."""

    standings: Mapping[str, BudgetStanding] = field(default_factory=dict)
    timeline: Timeline | None = None
    from_ms: int = 0
    until_ms: int = 0
    changes: int = -1

    def is_current(self, timeline: Timeline, now_ms: int) -> bool:
        """Return whether the snapshot was taken in the current beat of the same timeline."""
        return timeline is self.timeline and self.from_ms <= now_ms < self.until_ms


class Budgets:
    """Sets budgets, records spending, and reports both."""

    def __init__(self, context: RhythmContext, rates: Rates) -> None:
        self._context = context
        self.rates = rates
        self.tokens = TokenLedger(context, rates)
        self._snapshot = _Snapshot()
        self._reading = asyncio.Lock()
        self._reads = 0

    @property
    def own_agent(self) -> str:
        """The agent that is charged for the work of this process, by default its node."""
        return self._context.agent or self._context.node_id

    # --- setting ---------------------------------------------------------------------------------

    async def set(self, subject: str, budget: Budget, *, anew: bool = False) -> SetBudget:
        """Set the budget of an agent or account; `anew` resets its spending."""
        context = self._context
        if budget.charge_to is not None:
            raise BadValue("charge_to must be in the budget of a job or task", hint="leave it out here")
        document = budget.document()
        row = (checked_subject(subject), canonical(document), context.tick(), anew)
        payload = canonical({"subject": subject, "budget": document, "resets": row[-1]})
        statement = Statement(_SQL["set"], (*context.mesh, *row))
        limits = self.tokens.set_limits(subject, budget, resets=row[-1])
        await context.permits.write_op(Op(SET_BUDGET, payload), statement, *limits)
        return (await self.show(subject))[0]

    async def remove(self, subject: str) -> None:
        """Remove the budget of an agent or account."""
        await self.show(subject)
        statement = Statement(_SQL["remove"], (*self._context.mesh, checked_subject(subject)))
        op = Op(REMOVE_BUDGET, canonical({"subject": subject}))
        limits = self.tokens.set_limits(subject, Budget())
        await self._context.permits.write_op(op, statement, *limits)

    async def show(self, subject: str | None = None) -> list[SetBudget]:
        """Return all budgets, or that of one subject. Raises `NotKnown` if it has none."""
        if subject is not None:
            checked_subject(subject)
        rows = await self._context.store.read(_SQL["set_budgets"], (*self._context.mesh, subject), fresh=True)
        if subject is not None and not rows:
            raise NotKnown(f"{subject} has no budget", hint="list budgets: `vox-mesh budget show`")
        return [SetBudget(row["subject"], _parse_budget(row), row["since_ms"]) for row in rows]

    # --- spending --------------------------------------------------------------------------------

    def record(self, *ends: PhraseEnd) -> Statement:
        """Return the statement that records the ends of phrases and their costs. It may be spooled."""
        rows = orjson.dumps([self._values_of(end) for end in ends]).decode()
        return Statement(
            _SQL["record"], (*self._context.mesh, self._context.node_id, self._context.tick(), rows)
        )

    def record_late(self, *ends: PhraseEnd) -> tuple[Statement, ...]:
        """Return what records the ends of attempts at jobs, and settles the jobs that have ended before."""
        job_ids = [end.job_id for end in ends if end.job_id is not None]
        return self.record(*ends), *settle(self._context.mesh, job_ids)

    def _values_of(self, end: PhraseEnd) -> tuple[Any, ...]:
        return (
            end.phrase_id,
            end.agent_id,
            end.task_id,
            end.job_id,
            end.account,
            end.attempt,
            end.outcome,
            end.beats,
            end.waited,
            end.overruns,
            end.first_useful_ms,
            end.resources.as_json(),
            float(end.bu),
            self.cost_of(end),
            end.note,
            self._context.beat(end.ended_ms).window_ms,
            end.began_ms,
            end.ended_ms,
        )

    def cost_of(self, end: PhraseEnd) -> float:
        """Return the cost of a phrase at the rates of this node."""
        return self.rates.total({end.role: end.bu}, end.resources)

    async def report(self, subject: str | None = None, *, since_ms: int | None = None) -> list[Spending]:
        """Return the spending by agent and account, since a time or since their budgets count."""
        read, mesh = self._context.store.read, self._context.mesh
        if subject is not None:
            checked_subject(subject)
        values = (*mesh, subject, since_ms)
        standings = await self._read_standings(fresh=True)
        spent = {row["subject"]: row for row in await read(_SQL["spent"], values, fresh=True)}
        used: dict[str, dict[str, Any]] = {}
        for row in await read(_SQL["used"], values, fresh=True):
            of_subject, amount = used.setdefault(row["subject"], {}), row["amount"]
            if row["device"]:
                of_subject.setdefault(row["name"], {})[row["device"]] = amount
            else:
                of_subject[row["name"]] = amount
        tokens, limits = await self.tokens.of_subjects(subject, since_ms), await self.tokens.limits(subject)
        return [
            replace(
                self._make_spending(each, spent.get(each), used.get(each, {}), standings.get(each)),
                tokens=tokens.get(each, {}),
                limits=[limit for limit in limits if limit.subject == each],
            )
            for each in sorted({*standings, *spent, *tokens})
            if subject in (None, each)
        ]

    def _make_spending(
        self, subject: str, spent: Row | None, used: dict[str, Any], standing: BudgetStanding | None
    ) -> Spending:
        phrases, bu, cost = (0, 0.0, 0.0) if spent is None else (spent["phrases"], spent["bu"], spent["cost"])
        resources, units = Resources.of(used), self.rates.ecu
        totals = (subject, phrases, bu, cost, resources)
        ecu = None if units is None else units.of(resources)
        if standing is None:
            return Spending(*totals, None, None, Verdict.OK, ecu)
        current = standing.verdict(self._context.timeline, self._context.times.now_ms)
        return Spending(*totals, standing.budget, standing.since_ms, current, ecu)

    async def spent_on_job(self, job_id: str) -> tuple[float, int | None]:
        """Return the beats used by earlier attempts at a job, and when the first of them began."""
        rows = await self._context.store.read(_SQL["spent_on_job"], (*self._context.mesh, job_id), fresh=True)
        return rows[0]["bu"], rows[0]["began_ms"]

    # --- lost attempts ---------------------------------------------------------------------------

    def record_begin(self, begin: PhraseBegin) -> Statement:
        """Return the statement that records the beginning of an attempt, kept until its end is recorded."""
        attempt = (begin.job_id, begin.phrase_id, begin.claim_token)
        subject = (begin.agent_id, begin.account, begin.role, begin.attempt, begin.began_ms)
        return Statement(_SQL["begin"], (*self._context.mesh, *attempt, *subject))

    async def begun(self, job_id: str, claim_token: int) -> tuple[str, int] | None:
        """Return the phrase of an attempt whose beginning is recorded, and when it began."""
        values = (*self._context.mesh, job_id, claim_token)
        rows = await self._context.store.read(_SQL["begun"], values, fresh=True)
        return (rows[0]["phrase_id"], rows[0]["began_ms"]) if rows else None

    async def charge_lost(self, job_id: str, *, fresh: bool) -> None:
        """Record the ends of lost attempts: earlier ones at this job, and any at other jobs.

        Each is charged until the end of its lease, as the time of its worker's death is unknown.
        """
        context, now_ms = self._context, self._context.times.now_ms
        values = (*context.mesh, job_id, now_ms - _LOST_AFTER_MS, _MAX_LOST)
        try:
            rows = await context.store.read(_SQL["lost"], values, fresh=fresh)
            if rows:
                lost = self.record_late(*(self._make_lost_end(row, now_ms) for row in rows))
                await context.store.write(Script(*lost, appendable=True))
        except MeshError as error:
            _log.warning("lost attempts not charged: %s", error.line)

    def _make_lost_end(self, row: Row, now_ms: int) -> PhraseEnd:
        began_ms = row["began_ms"]
        ended_ms = max(began_ms, min(row["ended_ms"], now_ms))
        return PhraseEnd(
            phrase_id=row["phrase_id"],
            agent_id=row["agent_id"],
            task_id=row["job_id"],
            job_id=row["job_id"],
            outcome=PhraseOutcome.DONE if row["is_done"] else PhraseOutcome.FAILED,
            began_ms=began_ms,
            ended_ms=ended_ms,
            beats={_WORK: self._context.timeline.beats_between(began_ms, ended_ms)},
            attempt=row["attempt"],
            account=row["account"],
            role=row["role"],
            note="its end was not reported" if row["is_done"] else "its worker was gone",
        )

    # --- for workers -----------------------------------------------------------------------------

    async def standings(self) -> Mapping[str, BudgetStanding]:
        """Return all standings by subject. They are read at most once per beat, and only after changes.

        Attempts that begin together share a read. While the database is away, the last snapshot is used.
        """
        context, snapshot = self._context, self._snapshot
        if context.store.change_count != snapshot.changes and not snapshot.is_current(
            context.timeline, context.times.now_ms
        ):
            reads = self._reads
            async with self._reading:
                if self._reads == reads:  # else another caller has just read them, or could not
                    await self._refresh()
        return self._snapshot.standings

    async def _refresh(self) -> None:
        """Take a new snapshot; keep the last one if the database does not answer."""
        context = self._context
        changes, now_ms = context.store.change_count, context.times.now_ms
        try:
            standings = await self._read_standings()
        except MeshError as error:
            _log.warning("budgets not readable: %s", error.line)
        else:
            beat = context.beat(now_ms)
            self._snapshot = _Snapshot(standings, context.timeline, beat.epoch_ms, beat.ends_ms, changes)
        self._reads += 1

    async def _read_standings(self, *, fresh: bool = False) -> dict[str, BudgetStanding]:
        rows = await self._context.store.read(_SQL["standing"], self._context.mesh, fresh=fresh)
        return {
            row["subject"]: BudgetStanding(
                _parse_budget(row), row["since_ms"], row["bu"], orjson.loads(row["spent"])
            )
            for row in rows
            if _is_readable(row)
        }

    @property
    def next_check_ms(self) -> int | None:
        """When to read the standings again, or `None` if nothing has changed since."""
        return self._snapshot.until_ms if self._context.store.change_count != self._snapshot.changes else None

    async def exhausted_accounts(self) -> list[str]:
        """Return the accounts that may start no new work."""
        account, exhausted = account_of(""), await self._exhausted_subjects()
        return [each.removeprefix(account) for each in exhausted if each.startswith(account)]

    async def is_exhausted(self, agent: str) -> bool:
        """Return whether an agent may start no new work."""
        return agent_of(agent) in await self._exhausted_subjects()

    async def _exhausted_subjects(self) -> list[str]:
        timeline, now_ms = self._context.timeline, self._context.times.now_ms
        return [
            subject
            for subject, standing in (await self.standings()).items()
            if standing.verdict(timeline, now_ms) in _BLOCKING_VERDICTS
        ]


def _is_readable(row: Row) -> bool:
    """Return whether the columns hold values of their kinds: only a hostile row does not."""
    return (
        isinstance(row["subject"], str) and type(row["since_ms"]) is int and type(row["bu"]) in (int, float)
    )


def _parse_budget(row: Row) -> Budget:
    try:
        return Budget.of_document(read_stored(row["document"]))
    except BadValue as error:  # a newer version may know more
        _log.warning("budget not readable by this version: subject=%.128s error=%s", row["subject"], error)
        return Budget()


# --- budgets of a phrase -------------------------------------------------------------------------


@dataclass(slots=True)
class Allowance:
    """The budgets of a task, its agent and its account. Retries share it."""

    budget: Budget
    agent: str
    spent: float = 0.0
    since_ms: int | None = None
    standings: Sequence[BudgetStanding] = field(default=())
    """The standings of the agent and the account when last read."""

    async def refresh(self, budgets: Budgets) -> None:
        """Read the standings of the agent and the account."""
        subjects = [agent_of(self.agent), *([account_of(self.account)] if self.account else [])]
        standings = await budgets.standings()
        self.standings = [standings[each] for each in subjects if each in standings]

    @property
    def account(self) -> str:
        """The account that is charged."""
        return self.budget.charge_to or ""

    def capped(self, beats: Mapping[str, float]) -> dict[str, float]:
        """Return the beats of phases, capped by all budgets."""
        return capped(beats, self._budgets)

    def capped_waits(self, beats: Mapping[str, float]) -> dict[str, float]:
        """Return the beats of waits, capped by all budgets."""
        return capped_waits(beats, self._budgets)

    @property
    def _budgets(self) -> list[Budget]:
        return [self.budget, *(each.budget for each in self.standings)]

    def is_exhausted(self, timeline: Timeline, now_ms: int) -> bool:
        """Return whether the budget of the task, the agent or the account forbids new work."""
        return any(
            each.verdict(timeline, now_ms) in _BLOCKING_VERDICTS for each in self._all_standings(now_ms)
        )

    def ends_ms(self, timeline: Timeline, began_ms: int) -> int | None:
        """Return when a phrase that began then has used up the budgets, or `None`."""
        ends, left = [], []
        for each in self._all_standings(began_ms):
            ends.append(each.budget.hard_end_ms(timeline, each.since_ms))
            if each.budget.stop_bu is not None:
                left.append(each.budget.stop_bu - each.bu)
        if left:
            ends.append(timeline.after(began_ms, max(0.0, min(left))))
        return min((end_ms for end_ms in ends if end_ms is not None), default=None)

    def _all_standings(self, now_ms: int) -> list[BudgetStanding]:
        """Return all standings; the task's counts from the first call."""
        if self.since_ms is None:
            self.since_ms = now_ms
        return [BudgetStanding(self.budget, self.since_ms, self.spent), *self.standings]
