"""Needs: the acts that an op of the log does, for which its agent needs a grant.

The services, the front and the verifier of the log use the same table. Other ops of the mesh need no grant:
it writes them itself, or what leads to them was checked. Ops that users author need `op.append`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from vox_mesh.model.base.canonical import parse
from vox_mesh.model.grants.capability import (
    ABORT,
    ADD_CRON,
    ADD_RULE,
    ANSWER,
    APPEND,
    BREAK,
    DESIGNATE,
    DRAIN,
    EVERYTHING,
    EXECUTE,
    REKEY,
    REMOVE_CRON,
    REMOVE_RULE,
    RESOLVE,
    ROUTE,
    SCHEDULE,
    SET_BUDGET,
    SET_KIND,
    SET_RETENTION,
    SET_TEMPO,
    Act,
)
from vox_mesh.model.jobs import question, records
from vox_mesh.model.jobs.steps.suspension import WAKE_EARLY
from vox_mesh.model.nodes.liveness import REMOVE_NODE
from vox_mesh.model.oplog import op_names, verification
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.retention import ops

_MANIFEST: Final = 2  # the place of the manifest in the definition of a cron or rule
_BOUND_WORD: Final = 2  # the length of the path of a word or variable of a command

_SCHEDULING: Final = (SCHEDULE, EXECUTE)
_STAMPS: Final = frozenset({"at_ms"})


class OpNeed(NamedTuple):
    """What ops of a kind need."""

    actions: tuple[tuple[str, ...], ...]
    """The actions, whatever the payload: of each group, one is needed."""

    find: Callable[[Any], list[Act]]
    """Returns the acts of an op by its payload."""

    stamps: frozenset[str] = _STAMPS
    """The fields that say when, where and by whom an op was made: none of its arguments."""


def scheduling_acts(jobs: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Act]:
    """Return the acts of scheduling jobs, each given by its kind and the core of its manifest."""
    return list(dict.fromkeys(_scheduling(kind, core) for kind, core in jobs))


def _scheduling(kind: str, core: Mapping[str, Any]) -> Act:
    if kind != records.EXEC:
        return Act(SCHEDULE, kind)
    # Imported late: short commands do without.
    from vox_mesh.model.jobs.scheduling.workflow_run import bind, bindings_of

    bindings = bindings_of(core)
    if any(len(each.path) != _BOUND_WORD for each in bindings):
        return Act(EXECUTE)  # whole parts of the command are not known yet
    core = bind(core, {each.path: each.pattern for each in bindings})  # as it will run
    words = [*(core.get("command") or []), *(core.get("args") or [])]
    names = [*(core.get("env") or {}), *(core.get("env_from") or {})]
    return Act(EXECUTE, None, words[0] if words else "", tuple(words[1:]), frozenset(names))


def ending_acts(kinds: Iterable[str | None]) -> list[Act]:
    """Return the acts of aborting jobs of these kinds, returning them to the queue or waking them by hand."""
    return list(dict.fromkeys(Act(ABORT, kind) for kind in kinds))


def _of_jobs(payload: Any) -> list[Act]:
    return scheduling_acts((each["kind"], each["manifest"]) for each in payload["jobs"])


def _of_ends(payload: Any) -> list[Act]:
    return ending_acts(each.get("kind") for each in payload["jobs"])


def _of_yield(payload: Any) -> list[Act]:
    """Return what returning jobs by hand needs; a worker returns its own jobs without a grant."""
    return _of_ends(payload) if payload.get("by_hand") is True else []


def _defines(action: str, name: str) -> OpNeed:
    """Return what a cron or rule needs: to be added, and to schedule the jobs that it will schedule."""

    def find(payload: Any) -> list[Act]:
        cores = [parse(each[_MANIFEST]) for each in payload[name].values()]
        jobs = scheduling_acts((core.get("kind") or records.EXEC, core) for core in cores)
        return [Act(action), *jobs]

    return OpNeed(((action,), _SCHEDULING), find)


def _always(action: str, *stamps: str) -> OpNeed:
    return OpNeed(((action,),), lambda _: [Act(action)], _STAMPS.union(stamps))


NEEDS: Final[Mapping[str, OpNeed]] = {
    records.SCHEDULE: OpNeed((_SCHEDULING,), _of_jobs),
    records.ABORT: OpNeed(((ABORT,),), _of_ends),
    records.YIELD: OpNeed(((ABORT,),), _of_yield),
    WAKE_EARLY: OpNeed(((ABORT,),), _of_ends),
    question.ANSWER: OpNeed(((ANSWER,),), lambda payload: [Act(ANSWER, payload.get("kind"))]),
    op_names.BREAK: OpNeed(((BREAK,),), lambda payload: [Act(BREAK, payload["key"])]),
    op_names.RESOLVE: _always(RESOLVE, "written_at", "who"),
    op_names.ADD_CRON: _defines(ADD_CRON, "crons"),
    op_names.REMOVE_CRON: _always(REMOVE_CRON),
    op_names.ADD_RULE: _defines(ADD_RULE, "rules"),
    op_names.REMOVE_RULE: _always(REMOVE_RULE),
    op_names.SET_KIND: _always(SET_KIND),
    op_names.DRAIN_NODE: _always(DRAIN),
    op_names.UNDRAIN_NODE: _always(DRAIN),
    REMOVE_NODE: _always(DRAIN),
    op_names.SET_BUDGET: _always(SET_BUDGET),
    op_names.REMOVE_BUDGET: _always(SET_BUDGET),
    ops.SET_RETENTION: _always(SET_RETENTION),
    op_names.SET_TEMPO: _always(SET_TEMPO, "anchor_ms", "policy_hash"),
    op_names.DECLARE_INCIDENT: _always(SET_TEMPO),
    op_names.CLEAR_INCIDENT: _always(SET_TEMPO),
    verification.DESIGNATE: _always(DESIGNATE),
    verification.ROUTE: _always(ROUTE),
    verification.REKEY: _always(REKEY),
    # Who may do everything may also say, with the owner's key, what others may do.
    **dict.fromkeys(
        (verification.ADMIT_NODE, verification.TRUST_SCOPE, *verification.OWNER_GRANTS), _always(EVERYTHING)
    ),
}
"""What each kind of op needs."""


def is_checked(kind: str) -> bool:
    """Return whether ops of a kind need a grant."""
    return kind in NEEDS or kind not in op_names.INTERNAL_KINDS


def acts_of_op(kind: str, payload: str) -> list[Act]:
    """Return the acts of an op; none if it needs no grant. Raises one of `READ_ERRORS`."""
    need = NEEDS.get(kind)
    if need is not None:
        return need.find(parse(payload))
    return [] if kind in op_names.INTERNAL_KINDS else [Act(APPEND, kind)]


def stamps_of_op(kind: str) -> frozenset[str]:
    """Return the fields of an op that are none of its arguments."""
    need = NEEDS.get(kind)
    return frozenset() if need is None else need.stamps


def acts_of(entry: LogEntry) -> list[Act]:
    """Return the acts of an entry. Raises one of `READ_ERRORS`."""
    return acts_of_op(entry.kind, entry.payload)
