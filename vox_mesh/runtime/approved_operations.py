"""Operations that agents can ask for: how each is done, given its arguments, after an approval.

The name of an operation is the kind of its op, and its arguments are the payload of that op. To let agents
ask for another one, add a line: its service must write the op by `Permits.write`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

from vox_mesh.jobs.jobs import Jobs
from vox_mesh.locks.locks import Locks
from vox_mesh.model.jobs.records import ABORT, SCHEDULE
from vox_mesh.model.oplog.op_names import BREAK, SET_BUDGET
from vox_mesh.model.rhythm.budgets import Budget
from vox_mesh.rhythm.rhythm import Rhythm

Arguments = Mapping[str, Any]


class Services(Protocol):
    """The services that do the operations."""

    @property
    def jobs(self) -> Jobs:
        """Return the jobs."""

    @property
    def locks(self) -> Locks:
        """Return the locks."""

    @property
    def rhythm(self) -> Rhythm:
        """Return the rhythm."""


OPERATIONS: Final[Mapping[str, Callable[[Services, Arguments], Awaitable[object]]]] = {
    SCHEDULE: lambda mesh, asked: mesh.jobs.schedule_items(
        asked["jobs"], new=True, spool=False, defer=asked.get("defers", False)
    ),
    ABORT: lambda mesh, asked: mesh.jobs.abort(
        *(job["job_id"] for job in asked["jobs"]), reason=asked["reason"]
    ),
    BREAK: lambda mesh, asked: mesh.locks.break_lock(asked["key"], asked["reason"]),
    SET_BUDGET: lambda mesh, asked: mesh.rhythm.budgets.set(
        asked["subject"], Budget.of_document(asked["budget"]), anew=asked["resets"]
    ),
}
"""What does each operation. An operation that would not be exactly what was asked is refused."""
