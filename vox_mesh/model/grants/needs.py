"""Needs: the acts that an op of the log does, for which its agent needs a grant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from vox_mesh.model.base.canonical import parse
from vox_mesh.model.grants.capability import EXECUTE, SCHEDULE, Act
from vox_mesh.model.jobs.records import EXEC
from vox_mesh.model.jobs.records import SCHEDULE as SCHEDULE_OP
from vox_mesh.model.oplog.chain import LogEntry

CHECKED_OPS: Final = frozenset({SCHEDULE_OP})
"""The kinds of op that need a grant."""


def acts_of(entry: LogEntry) -> list[Act]:
    """Return the acts of an entry of one of the kinds `CHECKED_OPS`. Raises one of `READ_ERRORS`."""
    read: Any = parse(entry.payload)
    return scheduling_acts((each["kind"], each["manifest"]) for each in read["jobs"])


def scheduling_acts(jobs: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Act]:
    """Return the acts of scheduling jobs, each given by its kind and the core of its manifest."""
    return list(dict.fromkeys(_scheduling(kind, core) for kind, core in jobs))


def _scheduling(kind: str, core: Mapping[str, Any]) -> Act:
    if kind != EXEC:
        return Act(SCHEDULE, kind)
    words = [*(core.get("command") or []), *(core.get("args") or [])]
    names = [*(core.get("env") or {}), *(core.get("env_from") or {})]
    return Act(EXECUTE, None, words[0] if words else "", tuple(words[1:]), frozenset(names))
