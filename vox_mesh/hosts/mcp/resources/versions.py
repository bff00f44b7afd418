"""Versions of resources: small values that differ after a change that a reader would see."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Final

from vox_mesh.errors import NotKnown
from vox_mesh.hosts.mcp.resources.addresses import ResourceAddress, ResourceKind
from vox_mesh.runtime.services import MeshServices

ReadVersion = Callable[[], Awaitable[Hashable]]
"""Reads the present version of one resource."""

_FIRST: Final = 100
_GONE: Final = "gone"


def version_reader(mesh: MeshServices, address: ResourceAddress) -> ReadVersion:
    """Return what reads the version of a resource."""
    if address.kind is ResourceKind.INBOX:
        return InboxVersion(mesh, address.name)
    if address.kind is ResourceKind.JOB:
        return JobVersion(mesh, address.name)
    return LocksVersion(mesh)


class InboxVersion:
    """The first messages of an inbox, and the newest one: of a long inbox only its growth is seen."""

    def __init__(self, mesh: MeshServices, agent: str) -> None:
        self._mesh = mesh
        self._names = [agent]
        self._newest = 0

    async def __call__(self) -> Hashable:
        """Return the version."""
        peek = self._mesh.messages.queries.peek
        messages = await peek(self._names, limit=_FIRST)
        first = tuple((each.position, each.state, each.delivery_attempts) for each in messages)
        if len(messages) == _FIRST:
            after = max(self._newest, messages[-1].position)
            while newer := await peek(self._names, after=after, limit=_FIRST):
                after = newer[-1].position
            self._newest = after
        return (first, self._newest)


class JobVersion:
    """The state of a job, and the op that led to it."""

    def __init__(self, mesh: MeshServices, reference: str) -> None:
        self._mesh = mesh
        self._reference = reference

    async def __call__(self) -> Hashable:
        """Return the version."""
        try:
            job = await self._mesh.jobs.queries.find(self._reference)
        except NotKnown:
            return _GONE
        return (job.state, job.last_op, job.claim_token, job.attempts)


class LocksVersion:
    """All locks with the number of their waiters; a renewal is no change."""

    def __init__(self, mesh: MeshServices) -> None:
        self._mesh = mesh

    async def __call__(self) -> Hashable:
        """Return the version."""
        held = await self._mesh.locks.holders()
        return tuple((each.lock_key, each.fence_token, each.waiting) for each in held)
