"""A term: the time in which a node may change the backups, under one fencing token."""

from __future__ import annotations

from typing import Final

from vox_mesh.errors import StaleFence
from vox_mesh.locks.leadership import Leadership

LEASE_S: Final = 60.0


class BackupTerm:
    """Ends when the lease does. If the node leads again later, that is another term."""

    def __init__(self, leadership: Leadership, lease_s: float = LEASE_S) -> None:
        """Begin with a leadership that was just taken. Raises `StaleFence` if it is lost already."""
        self._leadership = leadership
        self.lease_s = lease_s
        if leadership.fence_token is None:
            raise StaleFence
        self.fence_token: int = leadership.fence_token

    def check(self) -> None:
        """Raise `StaleFence` if the term is over by the node's own clock."""
        if not self._leadership.is_ours or self._leadership.fence_token != self.fence_token:
            raise StaleFence

    async def confirm(self) -> None:
        """Renew the lease at the database. Raises `StaleFence` if the term is over."""
        self.check()
        await self._leadership.renew(self.lease_s)
        self.check()
