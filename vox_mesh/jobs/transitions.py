"""Transitions: the ops that change the states of jobs, each with its effects in the same script."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import orjson

from vox_mesh.errors import IllegalTransition, StaleClaim
from vox_mesh.jobs.proof.brief_proof import WORKER
from vox_mesh.jobs.work.task_rows import record_tasks
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.ulid import is_ulid
from vox_mesh.model.jobs.records import (
    ABORT,
    CLAIM,
    COMPLETE,
    EXPIRE,
    SCHEDULE,
    START,
    TASK,
    YIELD,
    Job,
    JobState,
)
from vox_mesh.model.rhythm.bindings import Opening
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.oplog.grants.permit import MESH_PERMIT, Permit
from vox_mesh.oplog.grants.reservations import reserve, settle
from vox_mesh.oplog.roles import NO_ROUTES, Routing
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.acting import current_agent
from vox_mesh.store.rows import Value, check_values
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Answer, Op, Script, Statement, new_key
from vox_mesh.store.store import Store

if TYPE_CHECKING:
    from vox_mesh.model.grants.limits import Use

SQL: Final = named("jobs")
_TAKES_SQL: Final = named("job_takes")

ROUTES_CHANGED: Final = "routes_changed"
"""The refusal of `claim` if the log has an op about routes that its author has not seen."""

OUTSIDE: Final = "outside_opening"
"""The refusal of `take` and `claim` if jobs bound to the rhythm can't be claimed now."""

OVER_BUDGET: Final = "over_budget"
"""The refusal of `claim` if not enough tokens or money are left for the jobs."""

AT_CAPACITY: Final = "at_capacity"
"""The refusal of `take` and `claim` if the agent would hold more jobs than it wants."""

NOT_ALL: Final = "not_all"
"""The refusal of `take` if not all jobs could be claimed."""

_ILLEGAL: Final = IllegalTransition.code
_STALE: Final = StaleClaim.code
_PARAMETER: Final = re.compile(r"\?(\d+)")

Item = Mapping[str, Any]
"""The entry of one job in an op."""


class JobTransitions:
    """Builds the scripts. An op may change many jobs; scripts with an answer return the changed ones.

    `causes` are the ops that led to an op: the log names them.
    """

    def __init__(self, store: Store, writer: OpLogWriter, clock: MeshClock) -> None:
        self._mesh = store.mesh_id
        self._writer = writer
        self._clock = clock

    def schedule(
        self,
        items: Sequence[Item],
        *effects: Statement,
        key: str | None = None,
        can_spool: bool = False,
        defers: bool = False,
        causes: Iterable[str] = (),
        permit: Permit = MESH_PERMIT,
    ) -> Script:
        """Schedule the jobs that do not exist yet, atomically and together with `effects`.

        `defers`: a predecessor that does not exist is waited for. `permit`: by which an agent schedules them;
        by default, the mesh itself does.
        """
        payload = {"jobs": items, "defers": True} if defers else {"jobs": items}
        op = self._op(SCHEDULE, payload, self._writer.identity.chain, key, causes=causes, permit=permit)
        has_links = any(item.get("after") for item in items)
        new = op.about(map(_without_after, items)) if has_links else op
        guards = permit.using(lambda: _scheduling_uses(items)).guards
        steps = [*guards, new.guarded("schedule", "ulid_taken")]
        if permit.budgets:
            steps += reserve(self._mesh, op.key, permit.budgets, _costs_of(items))
        if has_links:
            linked = [item for item in items if item.get("after")]
            links = op.about({"job_id": item["job_id"], "after": item["after"]} for item in linked)
            names = op.about({"job_id": item["job_id"]} for item in linked)
            steps += [
                links.step("link"),
                *(() if defers else (names.guarded("refuse_unknown_predecessor", "unknown_predecessor"),)),
                names.guarded("refuse_failed_predecessor", "predecessor_failed"),
                names.step("wait"),
            ]
        if tasks := [(item["job_id"], item[TASK]) for item in items if TASK in item]:
            steps += record_tasks(self._mesh, op.key, permit.agent, tasks)
        return op.script(*steps, *effects, appendable=can_spool)

    def take(
        self,
        items: Sequence[Item],
        starts: Sequence[Item],
        lease_ms: int,
        routing: Routing = NO_ROUTES,
        causes: Iterable[str] = (),
        permit: Permit | None = None,
        within: Opening | None = None,
        agent: str | None = None,
        at_ms: int | None = None,
    ) -> tuple[Script, Script]:
        """Claim and start jobs whose kinds have no limits, all or none: the short form of `claim`.

        If it is refused as `not_all`, `claim` may still get some of them. `agent` is charged for the work.
        """
        claim = self._claim_op(items, lease_ms, routing, causes, permit, agent, at_ms)
        start = self._op(START, {"jobs": starts}, self._node, causes=(claim.key,), at_ms=at_ms)
        return (
            claim.script(
                *(() if permit is None else permit.guards),
                *_not_early(within),
                claim.step("take"),
                claim.guarded("refuse_unless_all", NOT_ALL),
                *_not_late(within),
                *self._takes(claim, permit),
            ),
            start.script(start.step("start"), start.guarded("refuse_unless_all", NOT_ALL)),
        )

    def claim(
        self,
        items: Sequence[Item],
        lease_ms: int,
        routing: Routing = NO_ROUTES,
        causes: Iterable[str] = (),
        permit: Permit | None = None,
        within: Opening | None = None,
        agent: str | None = None,
        reserves: bool = False,
        at_ms: int | None = None,
    ) -> Script:
        """Claim the jobs that are still claimable, under new claim tokens.

        `permit` is that of the agent for which the node claims them. With `within`, it is refused unless
        the opening contains the time of the claim. `agent` is charged for the work; with `reserves`, tokens
        and money are reserved of its budgets and those of accounts.
        """
        op = self._claim_op(items, lease_ms, routing, causes, permit, agent, at_ms)
        return op.script(
            *(() if permit is None else permit.guards),
            *_not_early(within),
            *([op.step("reserve")] if reserves else []),
            op.step("claim"),
            *_not_late(within),
            op.guarded("refuse_unknown_routes", ROUTES_CHANGED),
            op.guarded("refuse_routed_elsewhere", "routed_elsewhere"),
            *([op.guarded("refuse_over_budget", OVER_BUDGET)] if reserves else []),
            op.guarded("refuse_held_back", "held_back"),
            op.guarded("refuse_unless_moved", _ILLEGAL),
            op.step("record_claims"),
            op.step("forget_claims"),
            *self._takes(op, permit),
            answer=op.answer("leased", "moved", "lease_until_ms"),
        )

    def _takes(self, claim: _JobOp, permit: Permit | None) -> Iterator[Statement]:
        """Yield what records the agent of a claim, and refuses it if the agent would hold too many jobs."""
        if permit is not None:
            yield claim.step("record_takes")
            if permit.capacity is not None:
                values = (*self._mesh, permit.agent, permit.capacity)
                yield Statement(_TAKES_SQL["refuse_over_capacity"], values, refusal=AT_CAPACITY)

    def _claim_op(
        self,
        items: Sequence[Item],
        lease_ms: int,
        routing: Routing,
        causes: Iterable[str],
        permit: Permit | None,
        agent: str | None,
        at_ms: int | None,
    ) -> _JobOp:
        payload: dict[str, Any] = {"jobs": items, "lease_duration_ms": lease_ms}
        if permit is not None:
            payload |= {"agent": permit.agent, "grant": permit.grant_id}
        op = self._op(
            *(CLAIM, payload, self._node, None, lease_ms),
            routing=routing,
            causes=causes,
            permit=permit,
            at_ms=at_ms,
        )
        return op.charged_to(agent)

    def renew(self, items: Sequence[Item], lease_ms: int, *effects: Statement) -> Script:
        """Renew the leases of the jobs that are still held."""
        op = self._op(
            CLAIM, {"jobs": items, "lease_duration_ms": lease_ms, "renews": True}, self._node, None, lease_ms
        )
        return op.script(
            op.step("renew"),
            op.guarded("refuse_stale_lease", _STALE),
            op.guarded("refuse_unless_moved", _ILLEGAL),
            *effects,
            answer=op.answer("leased", "moved", "lease_until_ms"),
        )

    def keep_start(self, job: Job) -> Statement:
        """Return the statement that keeps which op started an agent's attempt: a renewal hides it."""
        return Statement(SQL["keep_start"], (*self._mesh, job.job_id, job.claim_token, job.last_op))

    def start(self, items: Sequence[Item], causes: Iterable[str] = (), at_ms: int | None = None) -> Script:
        """Start claimed jobs."""
        op = self._op(START, {"jobs": items}, self._node, causes=causes, at_ms=at_ms)
        return op.script(
            op.step("start"),
            op.guarded("refuse_stale_lease", _STALE),
            op.guarded("refuse_unless_moved", _ILLEGAL),
            answer=op.answer("moved", "moved"),
        )

    def complete(
        self,
        items: Sequence[Item],
        *effects: Statement,
        logged: Sequence[Item] | None = None,
        worker: Item | None = None,
        can_spool: bool = True,
        causes: Iterable[str] = (),
        at_ms: int | None = None,
        settles: bool = True,
    ) -> Script:
        """Complete jobs with their results, all or none.

        `logged` is more about each job that is only for the op log, such as its proof: no statement reads it.
        `worker` is what brief proofs have in common.
        `can_spool`: whether it is spooled while the database is unavailable. `settles`: whether any of the
        jobs may have reserved of the budget of a grant.
        """
        op = self._completion(items, logged, worker, causes, at_ms)
        steps = [
            op.step("complete"),
            op.guarded("refuse_stale_claim", _STALE),
            op.guarded("refuse_unless_all_moved", _ILLEGAL),
            op.guarded("refuse_without_snapshot", "inference_not_recorded"),
        ]
        if fails := any(item["state"] != JobState.SUCCEEDED for item in items):
            steps.append(op.step("fail_successors"))
        settling = self._settle(items) if settles or fails else ()
        return op.script(*steps, op.step("release"), *effects, *settling, appendable=can_spool)

    def _settle(self, items: Sequence[Item]) -> Sequence[Statement]:
        return settle(self._mesh, (item["job_id"] for item in items))

    def _completion(
        self,
        items: Sequence[Item],
        logged: Sequence[Item] | None,
        worker: Item | None,
        causes: Iterable[str],
        at_ms: int | None,
    ) -> _JobOp:
        more: dict[str, Any] = {} if worker is None else {WORKER: worker}
        if logged is not None:
            more["jobs"] = [{**item, **its} for item, its in zip(items, logged, strict=True)]
        return self._op(COMPLETE, {"jobs": items}, self._node, logged=more, causes=causes, at_ms=at_ms)

    def end_takes(self, jobs: Iterable[Job]) -> Statement:
        """Return the statement that forgets on whose behalf jobs were claimed: their attempts are over."""
        pairs = [(job.job_id, job.claim_token) for job in jobs]
        return Statement(SQL["end_takes"], (*self._mesh, orjson.dumps(pairs).decode()))

    def yield_jobs(
        self,
        items: Sequence[Item],
        *effects: Statement,
        claimer: str | None = None,
        can_spool: bool = True,
        causes: Iterable[str] = (),
        permit: Permit | None = None,
    ) -> Script:
        """Yield jobs, all or none; without a claimer, whichever node holds them.

        `permit`: by which an agent returns jobs by hand that it does not hold.
        """
        asks = any("question" in item for item in items)
        awaits = any("after" in item for item in items)
        agent = current_agent() if asks else None
        payload: dict[str, Any] = {"jobs": items} if agent is None else {"jobs": items, "agent": agent}
        if permit is not None and permit.grant_id is not None:
            payload["by_hand"] = True
        op = self._op(YIELD, payload, claimer, causes=causes, permit=permit)
        is_taken = claimer is None or any("interrupted" in item for item in items)
        return op.script(
            *(() if permit is None else permit.guards),
            *([op.step("take_phrases")] if is_taken else ()),
            op.step("give_back"),
            op.guarded("refuse_stale_claim", _STALE),
            op.guarded("refuse_unless_all_moved", _ILLEGAL),
            *([op.step("ask")] if asks else []),
            *([op.step("await_jobs")] if awaits else []),
            *([op.step("wait_again")] if asks or awaits else []),
            *([op.step("record_questions")] if asks else []),
            *effects,
            appendable=can_spool,
        )

    def expire(self, items: Sequence[Item], causes: Iterable[str] = ()) -> Script:
        """Return the jobs with expired leases to the queue."""
        # Without `interrupts`, as in the ops of older nodes, the attempts count as failed.
        op = self._op(EXPIRE, {"jobs": items, "interrupts": True}, causes=causes)
        return self._end(op, "expire", items)

    def abort(
        self, items: Sequence[Item], reason: str, causes: Iterable[str] = (), permit: Permit = MESH_PERMIT
    ) -> Script:
        """Abort the jobs that are not terminal. `permit`: by which an agent does so; by default, the mesh."""
        op = self._op(ABORT, {"jobs": items, "reason": reason}, causes=causes, permit=permit)
        return self._end(op, "abort", items, permit.guards)

    def _end(self, op: _JobOp, name: str, items: Sequence[Item], guards: Sequence[Statement] = ()) -> Script:
        return op.script(
            *guards,
            op.step("take_phrases"),
            op.step(name),
            op.guarded("refuse_unless_moved", _ILLEGAL),
            op.step("fail_successors"),
            op.step("release"),
            *self._settle(items),
            answer=op.answer("moved", "moved"),
        )

    @property
    def _node(self) -> str:
        return self._writer.identity.node_id

    def _op(
        self,
        kind: str,
        payload: Mapping[str, Any],
        author: str | None = None,
        key: str | None = None,
        more: Value = None,
        logged: Mapping[str, Any] | None = None,
        routing: Routing = NO_ROUTES,
        causes: Iterable[str] = (),
        permit: Permit | None = None,
        at_ms: int | None = None,
    ) -> _JobOp:
        """Return an op of this time, by default now.

        `logged` is what it has in the op log, if that is more than the statements need.
        """
        at_ms = self._clock.now_ms if at_ms is None else at_ms
        # Manifests and envelopes are embedded, and their depth was checked; all else is flat.
        if not logged:
            text = logged_text = canonical({**payload, "at_ms": at_ms}, max_depth=None)
        else:
            text = orjson.dumps({**payload, "at_ms": at_ms}).decode()
            logged_text = canonical({**payload, "at_ms": at_ms, **logged}, max_depth=None)
        key = key or (None if permit is None else permit.key) or new_key()
        deps = tuple(filter(is_ulid, dict.fromkeys(causes)))  # a row may name anything
        op = Op(kind, logged_text, deps)
        if permit is not None:
            op = permit.named_in(op)
        return _JobOp(op, (*self._mesh, key, text, author, more, routing.text), at_ms)


class _JobOp:
    """An op whose statements all take the same values."""

    def __init__(self, op: Op, values: Sequence[Value], at_ms: int) -> None:
        self._op = op
        self._values = values
        self._at_ms = at_ms
        self._weight = check_values(values)

    @property
    def key(self) -> str:
        return str(self._values[2])

    def about(self, items: Iterable[Item]) -> _JobOp:
        """Return the op for statements that need no more of its jobs than this."""
        text = canonical({"jobs": [*items], "at_ms": self._at_ms}, max_depth=None)
        return _JobOp(self._op, (*self._values[:3], text, *self._values[4:]), self._at_ms)

    def charged_to(self, agent: str | None) -> _JobOp:
        return _JobOp(self._op, (*self._values, agent), self._at_ms)

    def step(self, name: str) -> Statement:
        return Statement.of_checked(SQL[name], self._values[: _value_count(name)], self._weight)

    def guarded(self, name: str, refusal: str) -> Statement:
        values = self._values[: _value_count(name)]
        return Statement.of_checked(SQL[name], values, self._weight, refusal=refusal)

    def answer(self, name: str, *columns: str) -> Answer:
        return Answer(SQL[name], self._values[: _value_count(name)], columns)

    def script(
        self, *statements: Statement, answer: Answer | None = None, appendable: bool = False
    ) -> Script:
        script = Script(*statements, answer=answer, key=self.key, op=self._op, appendable=appendable)
        script.may_come_again = False  # its key is new
        return script


def _without_after(item: Item) -> Item:
    """Return the entry of a job with the number of its dependencies instead of their names."""
    rest = {name: value for name, value in item.items() if name != "after"}
    return {**rest, "waits": len(item.get("after") or ())}


def _costs_of(items: Sequence[Item]) -> dict[str, int]:
    from vox_mesh.model.grants.limits import most_cost  # imported late: few grants have a budget

    return {item["job_id"]: most_cost(item["kind"], _core_of(item)) for item in items}


def _core_of(item: Item) -> Any:
    return orjson.loads(orjson.dumps(item["manifest"]))


def _scheduling_uses(items: Sequence[Item]) -> Iterator[Use]:
    from vox_mesh.model.grants import limits, needs  # imported late: few agents have limits

    for item in items:
        (act,) = needs.scheduling_acts([(item["kind"], _core_of(item))])
        yield limits.Use(act, limits.Item(limits.ItemKind.JOB, item["job_id"]))


def _not_early(within: Opening | None) -> Sequence[Statement]:
    return () if within is None else [Statement(SQL["refuse_early"], (within.begins_ms,), refusal=OUTSIDE)]


def _not_late(within: Opening | None) -> Sequence[Statement]:
    return () if within is None else [Statement(SQL["refuse_late"], (within.ends_ms,), refusal=OUTSIDE)]


@cache
def _value_count(name: str) -> int:
    """Return the number of values a statement takes."""
    return max(int(parameter[1]) for parameter in _PARAMETER.finditer(SQL[name]))
