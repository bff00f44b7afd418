"""Operations that agents can ask for: how each is done after an approval.

The name of an operation is the kind of its op, and its arguments are the payload of that op. To let agents
ask for another one, add a row to `OPERATIONS`: its service must write the op by `Permits`. If the service
chooses the id of its op, it takes `Permits.new_key`. What differs whenever an op is made is named as its
stamps in `model.grants.needs`. Ops of users' own kinds need no row.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from vox_mesh.errors import BadValue
from vox_mesh.jobs.scheduling.cron_ops import CronDefinition
from vox_mesh.model.base.canonical import decode_row
from vox_mesh.model.grants.capability import APPEND, Capability
from vox_mesh.model.grants.needs import NEEDS
from vox_mesh.model.jobs.records import ABORT, SCHEDULE, YIELD
from vox_mesh.model.jobs.scheduling.rule import RuleDefinition
from vox_mesh.model.jobs.steps.suspension import WAKE_EARLY
from vox_mesh.model.locks.patterns import prefix_covers
from vox_mesh.model.nodes.liveness import REMOVE_NODE
from vox_mesh.model.oplog.op_names import (
    ADD_CRON,
    ADD_RULE,
    BREAK,
    CLEAR_INCIDENT,
    DECLARE_INCIDENT,
    DRAIN_NODE,
    REMOVE_BUDGET,
    REMOVE_CRON,
    REMOVE_RULE,
    RESOLVE,
    SET_BUDGET,
    SET_KIND,
    SET_TEMPO,
    UNDRAIN_NODE,
)
from vox_mesh.model.oplog.verification import DESIGNATE, ROUTE
from vox_mesh.model.retention.ops import SET_RETENTION
from vox_mesh.model.rhythm.budgets import Budget
from vox_mesh.model.rhythm.policy import TempoPolicy
from vox_mesh.occ.conflicts import GONE
from vox_mesh.occ.tables import WRITTEN_AT

if TYPE_CHECKING:
    from vox_mesh.jobs.jobs import Jobs
    from vox_mesh.jobs.kinds import JobKinds
    from vox_mesh.jobs.scheduling.crons import Crons
    from vox_mesh.jobs.scheduling.rules import Rules
    from vox_mesh.locks.locks import Locks
    from vox_mesh.nodes.nodes import Nodes
    from vox_mesh.occ.conflicts import Conflicts
    from vox_mesh.oplog.grants.approvals import ApplyOperation
    from vox_mesh.oplog.oplog import OpLog
    from vox_mesh.oplog.roles import Roles
    from vox_mesh.rhythm.rhythm import Rhythm
    from vox_mesh.runtime.retention.retention import Retention

Arguments = Mapping[str, Any]


class Services(Protocol):
    """The services that do the operations."""

    @property
    def jobs(self) -> Jobs:
        """Return the jobs."""

    @property
    def job_kinds(self) -> JobKinds:
        """Return the kinds of job."""

    @property
    def crons(self) -> Crons:
        """Return the recurring jobs."""

    @property
    def rules(self) -> Rules:
        """Return the rules."""

    @property
    def locks(self) -> Locks:
        """Return the locks."""

    @property
    def conflicts(self) -> Conflicts:
        """Return the conflicts."""

    @property
    def nodes(self) -> Nodes:
        """Return the nodes."""

    @property
    def roles(self) -> Roles:
        """Return the owner's decisions."""

    @property
    def oplog(self) -> OpLog:
        """Return the op log."""

    @property
    def rhythm(self) -> Rhythm:
        """Return the rhythm."""

    @property
    def retention(self) -> Retention:
        """Return the retention."""


async def _set_retention(mesh: Services, asked: Arguments) -> None:
    subject, kind = asked["subject"], asked["kind"]
    if asked.get("unset"):
        await mesh.retention.unset(subject, kind=kind)
    else:
        limits = {name: asked.get(name) for name in ("age_ms", "max_rows", "max_bytes")}
        await mesh.retention.set(subject, kind=kind, **limits)


async def _resolve(mesh: Services, asked: Arguments) -> object:
    right = (await mesh.conflicts.find(asked["conflict_id"])).right
    is_on_right = asked["over"] == (None if right is None else right[WRITTEN_AT])
    is_value = asked["take"] == "value"
    return await mesh.conflicts.resolve(
        asked["conflict_id"],
        take=None if is_value else asked["take"],
        value=decode_row(asked["value"]) if is_value else None,
        reason=asked["reason"],
        onto=None if is_on_right else asked["over"] or GONE,
    )


def _yield(mesh: Services, asked: Arguments) -> Awaitable[object]:
    (job,) = asked["jobs"]
    return mesh.jobs.yield_until(job["job_id"], job["not_before_ms"], job["reason"])


def _add_cron(mesh: Services, asked: Arguments) -> Awaitable[object]:
    ((name, definition),) = asked["crons"].items()
    return mesh.crons.define(name, CronDefinition._make(definition))


def _add_rule(mesh: Services, asked: Arguments) -> Awaitable[object]:
    ((name, definition),) = asked["rules"].items()
    return mesh.rules.define(name, RuleDefinition._make(definition))


def _set_kind(mesh: Services, asked: Arguments) -> Awaitable[object]:
    rules = {name: value for name, value in asked.items() if name != "kind"}
    return mesh.job_kinds.set_rules(asked["kind"], rules)


OPERATIONS: Final[Mapping[str, Callable[[Services, Arguments], Awaitable[object]]]] = {
    SCHEDULE: lambda mesh, asked: mesh.jobs.schedule_items(
        asked["jobs"], new=True, spool=False, defer=asked.get("defers", False)
    ),
    ABORT: lambda mesh, asked: mesh.jobs.abort(
        *(job["job_id"] for job in asked["jobs"]), reason=asked["reason"]
    ),
    YIELD: _yield,
    WAKE_EARLY: lambda mesh, asked: mesh.jobs.wakes.wake(asked["jobs"][0]["job_id"]),
    BREAK: lambda mesh, asked: mesh.locks.break_lock(asked["key"], asked["reason"]),
    RESOLVE: _resolve,
    ADD_CRON: _add_cron,
    REMOVE_CRON: lambda mesh, asked: mesh.crons.remove(asked["name"]),
    ADD_RULE: _add_rule,
    REMOVE_RULE: lambda mesh, asked: mesh.rules.remove(asked["name"]),
    SET_KIND: _set_kind,
    DRAIN_NODE: lambda mesh, asked: mesh.job_kinds.drain(asked["node"]),
    UNDRAIN_NODE: lambda mesh, asked: mesh.job_kinds.undrain(asked["node"]),
    REMOVE_NODE: lambda mesh, asked: mesh.nodes.remove(asked["node"]),
    SET_BUDGET: lambda mesh, asked: mesh.rhythm.budgets.set(
        asked["subject"], Budget.of_document(asked["budget"]), anew=asked["resets"]
    ),
    REMOVE_BUDGET: lambda mesh, asked: mesh.rhythm.budgets.remove(asked["subject"]),
    SET_RETENTION: _set_retention,
    SET_TEMPO: lambda mesh, asked: mesh.rhythm.policies.set(
        TempoPolicy.of_document(asked["policy"]), asked["reason"]
    ),
    DECLARE_INCIDENT: lambda mesh, asked: mesh.rhythm.incidents.declare(asked["reason"]),
    CLEAR_INCIDENT: lambda mesh, _: mesh.rhythm.incidents.clear(),
    DESIGNATE: lambda mesh, asked: mesh.roles.designate_coordinator(asked["node"]),
    ROUTE: lambda mesh, asked: mesh.roles.route_kind(asked["kind"], asked["node"]),
}
"""What does each operation. An operation that would not be exactly what was asked is refused."""

ASKABLE: Final = frozenset(
    {APPEND, *(action for kind in OPERATIONS for group in NEEDS[kind].actions for action in group)}
)
"""The actions that agents can ask for. The others happen at once or not at all, or are the owner's alone."""


def find_operation(mesh: Services, kind: str) -> ApplyOperation | None:
    """Return what does operations of a kind in this process; `None` if it can't do them."""
    apply = OPERATIONS.get(kind)
    if apply is not None:
        return lambda asked: apply(mesh, asked.values)
    if not mesh.oplog.can_append(kind):
        return None
    return lambda asked: mesh.oplog.append(asked.name, asked.values, deps=asked.deps)


def refuse_unaskable(capabilities: Sequence[Capability]) -> None:
    """Raise `BadValue` if a grant is to ask for what no agent can ask for."""
    for each in capabilities:
        if each.asks and not any(prefix_covers(each.act.action, action) for action in ASKABLE):
            raise BadValue(
                f"{each.act.action} can't be asked for: it happens at once or not at all",
                hint=f"grant it with `can`, or leave it out; `ask` is for {', '.join(sorted(ASKABLE))}",
            )
