"""Pass everything on to a replica that may be exchanged for another."""

from __future__ import annotations

from vox_mesh.store.replica.replica import Progress, Replica, ReplicaStatus
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement


class DelegatingReplica:
    """A replica that is another one at a time."""

    _chosen: Replica

    @property
    def is_in_touch(self) -> bool:
        """Return whether the primary answered the last request."""
        return self._chosen.is_in_touch

    @property
    def is_pushed(self) -> bool:
        """Return whether the primary pushes commits."""
        return self._chosen.is_pushed

    def answer_now(self, statement: Statement) -> Rows | None:
        """Answer a query, or return `None` if the replica can't without waiting."""
        return self._chosen.answer_now(statement)

    async def answer(self, statement: Statement) -> Rows | None:
        """Answer a query, or return `None` if the replica can't."""
        return await self._chosen.answer(statement)

    async def caught_up(self) -> bool:
        """Wait briefly until the replica shows what this process has seen. Return whether it had to wait."""
        return await self._chosen.caught_up()

    def note_write(self, asked_at: float | None) -> None:
        """Note that a write was sent to the primary; `asked_at` is `None` if it was not answered."""
        self._chosen.note_write(asked_at)

    async def wait_until_caught_up(self, progress: Progress, patience_s: float) -> None:
        """Wait until the replica has all commits made before this call."""
        await self._chosen.wait_until_caught_up(progress, patience_s)

    def status(self) -> ReplicaStatus:
        """Return the status of the replica."""
        return self._chosen.status()
