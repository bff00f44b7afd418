"""The brief of an agent: who it is, and what waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vox_mesh.model.grants.capability import TAKE, Act
from vox_mesh.model.locks.records import Holder
from vox_mesh.model.messages.records import inbox_names
from vox_mesh.model.principals.request_signature import Audience
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.jobs import ready_jobs
from vox_mesh.views.rhythm import BeatView, beat_of

_MAX_LOCKS: Final = 50
_MAX_JOBS: Final = 20
_MAX_UNREAD: Final = 100


@dataclass(frozen=True)
class OwnLockView:
    """A lock of the agent."""

    lock_key: str
    fence_token: int
    is_shared: bool
    expires_at: str

    @classmethod
    def of(cls, holder: Holder) -> OwnLockView:
        """Return the view of a lock."""
        return cls(holder.lock_key, holder.fence_token, holder.is_shared, holder.expires_at)


@dataclass(frozen=True)
class ReadyJobView:
    """A job that the agent could take now."""

    job_id: str
    kind: str
    priority: int


@dataclass(frozen=True)
class BriefView:
    """What an agent may want to know first. `unread` is at most 100; the lists may be cut short.

    `grants` are the lines of its grants in force; none if it needs no grant.
    """

    agent_id: str
    node_id: str
    grants: list[str]
    unread: int
    locks: list[OwnLockView]
    ready: list[ReadyJobView]
    beat: BeatView
    audience: str
    """The mesh and the node, as signatures name them."""


async def brief_of(mesh: MeshServices, agent: str) -> BriefView:
    """Return the brief of an agent."""
    known = mesh.principals.known
    await known.refresh()
    is_limited = known.needs_grant(agent)
    ready = await ready_jobs(mesh, None, _MAX_JOBS)
    held = [each for each in await mesh.locks.holders() if each.holder_agent == agent]
    unread = await mesh.messages.queries.peek(inbox_names(agent, ()), limit=_MAX_UNREAD)
    return BriefView(
        agent,
        mesh.identity.node_id,
        known.lines_of(agent),
        len(unread),
        [OwnLockView.of(each) for each in held[:_MAX_LOCKS]],
        [
            ReadyJobView(job.job_id, job.kind, job.priority)
            for job in ready
            if not is_limited or known.may_ask_for(agent, [Act(TAKE, job.kind)])
        ],
        await beat_of(mesh),
        str(Audience(*mesh.store.mesh_id, mesh.identity.node_id)),
    )
