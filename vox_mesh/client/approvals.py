"""Approvals through a node: an agent waits for its own, and decides on others that its grants allow."""

from __future__ import annotations

from urllib.parse import quote

from vox_mesh.client.connection import CALL_S, NodeConnection, in_query
from vox_mesh.client.long_wait import LongWait
from vox_mesh.client.records import approval_of
from vox_mesh.model.base.durations import Duration, seconds_or_none
from vox_mesh.model.grants.approval import Approval


class ClientApprovals:
    """Shows what agents have asked for, waits for decisions and makes them."""

    def __init__(self, connection: NodeConnection) -> None:
        self._connection = connection

    async def find(self, approval_id: str) -> Approval:
        """Return an approval. Raises `NotKnown` if there is none."""
        return approval_of(await self._connection.get(_path_of(approval_id)))

    async def listed(self, *, every: bool = False) -> list[Approval]:
        """Return at most 100 open approvals, the oldest first; or of all that are kept, the newest first."""
        page = await self._connection.get("/v1/approvals", all="true" if every else None)
        return [approval_of(each) for each in page["items"]]

    async def wait(self, approval_id: str, *, timeout: Duration | None = None) -> Approval:
        """Wait until an approval is denied, applied, refused or has expired.

        Raises `TimeoutError` after `timeout` seconds.
        """
        waiting, path = LongWait(seconds_or_none("timeout", timeout)), _path_of(approval_id, "/wait")
        while True:
            step = waiting.next_step()
            answer = await self._connection.get(path, timeout_s=step + CALL_S, timeout=in_query(step))
            found = approval_of(answer)
            if not found.is_open:
                return found
            if waiting.is_last:
                raise TimeoutError

    async def approve(self, approval_id: str, reason: str = "") -> Approval:
        """Approve what was asked, which is applied at once; return what became of it."""
        return await self._decide(approval_id, "/approve", reason)

    async def deny(self, approval_id: str, reason: str = "") -> Approval:
        """Deny what was asked. Those who may approve it may, and the agent that asks."""
        return await self._decide(approval_id, "/deny", reason)

    async def _decide(self, approval_id: str, decision: str, reason: str) -> Approval:
        return approval_of(await self._connection.post(_path_of(approval_id, decision), {"reason": reason}))


def _path_of(approval_id: str, rest: str = "") -> str:
    return f"/v1/approvals/{quote(approval_id, safe='')}{rest}"
