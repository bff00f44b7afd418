"""Scheduling by a permit: the acting agent's grant, if it needs one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from vox_mesh.jobs.transitions import JobTransitions
from vox_mesh.oplog.grants.permits import Permit, Permits
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.script import Outcome, Script

if TYPE_CHECKING:
    from vox_mesh.model.grants.capability import Act

Write = Callable[[Script], Awaitable[Outcome]]
"""Writes a script."""


class PermittedScheduling:
    """Schedule jobs for the agents of one process."""

    def __init__(self, writer: OpLogWriter, transitions: JobTransitions, permits: Permits) -> None:
        self._writer = writer
        self._transitions = transitions
        self._permits = permits

    async def write(
        self, items: Sequence[Mapping[str, Any]], write: Write, *, spool: bool, defer: bool
    ) -> tuple[Script, bool]:
        """Schedule jobs by a permit, looked for again if it was out of date; return whether it is spooled."""

        async def schedule(permit: Permit) -> tuple[Script, bool]:
            script = self._transitions.schedule(items, can_spool=spool, defers=defer, permit=permit)
            return script, (await write(script)).spooled

        return await self._permits.attempt(lambda: _acts(items), schedule)

    async def permit(self, items: Sequence[Mapping[str, Any]]) -> Permit:
        """Return the permit of the acting agent to schedule jobs; raise `NotGranted` if it has none."""
        return await self._permits.permit(self._writer.acting_agent, lambda: _acts(items))


def _acts(items: Sequence[Mapping[str, Any]]) -> list[Act]:
    """Return the acts for which scheduling these jobs needs a grant."""
    from vox_mesh.model.grants.needs import scheduling_acts  # imported late: few agents need grants

    return scheduling_acts((item["kind"], orjson.loads(orjson.dumps(item["manifest"]))) for item in items)
