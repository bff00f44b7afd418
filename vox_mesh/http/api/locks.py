"""Locks: leases on keys with fencing tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from itertools import compress
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from vox_mesh.errors import MeshError
from vox_mesh.http.access import Scope
from vox_mesh.http.admission import Load
from vox_mesh.http.api.operations import (
    CALL_S,
    MAX_WAIT_S,
    AgentName,
    Operations,
    RequestModel,
    Seconds,
    Text,
    Wait,
)
from vox_mesh.http.api.pages import LimitQuery, Page, PageQuery
from vox_mesh.http.principals.needs import NOTHING, OWNER, READS, Need, reads_of_others, writes
from vox_mesh.http.principals.own_names import OwnAgent
from vox_mesh.locks.path_guard import obstacles_in_steps, unlocked
from vox_mesh.model.grants.capability import ACQUIRE, Act
from vox_mesh.model.locks.pattern_index import PatternIndex
from vox_mesh.model.locks.patterns import normalise
from vox_mesh.model.locks.records import Holder
from vox_mesh.model.oplog.op_names import BREAK
from vox_mesh.runtime import locking
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.slices import in_slices
from vox_mesh.views.locks import AcquiredView, HoldView, LockView, LockWaiterView, waiter_views

LOCKS: Final = Operations("locks")

_MAX_KEYS: Final = 100
_Token = Annotated[int, Field(ge=1, lt=2**63)]


class LocksQuery(PageQuery):
    """The filter of a list of locks."""

    key: Text | None = None
    agent: AgentName | None = None


class AcquireRequest(RequestModel):
    """The lock to acquire: all keys or none; for a time, or until the phase or bar ends.

    With `or_renew`, a lock that the agent holds already is renewed and keeps its token. With the session
    `heartbeats`, each heartbeat of the agent renews it.
    """

    keys: Annotated[list[Text], Field(min_length=1, max_length=_MAX_KEYS)]
    agent: OwnAgent
    ttl: Seconds | None = None
    until: Literal["phase", "bar"] | None = None
    wait: Wait = 0.0
    shared: bool = False
    or_renew: bool = False
    session: Literal["heartbeats"] | None = None

    @property
    def item_count(self) -> int:
        """The number of keys."""
        return len(self.keys)

    @property
    def waits_s(self) -> float:
        """How long it may wait."""
        return self.wait


class ReleaseRequest(RequestModel):
    """A lock, named by one of its keys and its fencing token."""

    lock_key: Text
    fence_token: _Token


class RenewRequest(ReleaseRequest):
    """The new lease, from now on."""

    ttl: Seconds | None = None


class ReleaseHeldRequest(RequestModel):
    """An agent, and the key of its lock; without one, all of its locks."""

    agent: OwnAgent
    lock_key: Text | None = None


class BreakRequest(RequestModel):
    """The key whose locks are broken, and the reason."""

    lock_key: Text
    reason: Text


class CheckPathsRequest(RequestModel):
    """The paths an agent wants to change."""

    paths: Annotated[list[Text], Field(min_length=1, max_length=1_000)]
    agent: OwnAgent
    require_lock: bool = False


@dataclass(frozen=True)
class BrokenView:
    """The broken locks, and the op that broke them."""

    op_id: str
    broken: list[HoldView]


@dataclass(frozen=True)
class ObstacleView:
    """A path, and another agent's lock that covers it; none if the agent needs a lock and has none."""

    path: str
    holder: HoldView | None


@dataclass(frozen=True)
class SweptView:
    """The number of expired locks that were removed."""

    swept: int


@LOCKS.get("/v1/locks", needs=reads_of_others("agent", "query"))
async def list_locks(mesh: MeshServices, query: LocksQuery) -> Page[HoldView]:
    """List held locks; with a key, only the locks that block it; with an agent, only its locks."""
    holders = await mesh.locks.holders()
    if query.agent is not None:
        holders = [each for each in holders if each.holder_agent == query.agent]
    if query.key is not None:
        wanted = PatternIndex([normalise(query.key)])
        blocks = await in_slices(bool(wanted.overlapping(each.lock_key)) for each in holders)
        holders = list(compress(holders, blocks))
    page = query.page_of(holders, _name_of)
    return Page([HoldView.of(holder) for holder in page.items], page.next)


@LOCKS.get("/v1/locks/waiters")
async def list_waiters(mesh: MeshServices, query: LimitQuery) -> list[LockWaiterView]:
    """List the waiters for locks in the order of each key's queue, and the locks that block each."""
    waiters = await mesh.locks.waiters(query.limit)
    holders = await mesh.locks.holders() if waiters else []
    return await in_slices(waiter_views(waiters, holders))


def _name_of(holder: Holder) -> str:
    return f"{holder.lock_key}\0{holder.fence_token:020}\0{holder.holder_agent}"


def _acts(_: str, inputs: Mapping[str, Any]) -> Iterable[Act]:
    return [Act(ACQUIRE, normalise(key)) for key in inputs["body"].keys]


async def _release_unclaimed(mesh: MeshServices, held: AcquiredView) -> None:
    if held.is_renewed:
        return  # its agent had it before, and may still use it
    with suppress(MeshError):  # if the release fails, the lease expires by itself
        await mesh.locks.release_by_token(held.lock_keys[0], held.fence_token)


@LOCKS.post(
    "/v1/locks",
    needs=Need(((ACQUIRE,),), _acts),
    status=HTTPStatus.CREATED,
    takes_s=MAX_WAIT_S + CALL_S,
    load=Load.LOCK_WAIT,
    undo=_release_unclaimed,
)
async def acquire_lock(mesh: MeshServices, body: AcquireRequest) -> AcquiredView:
    """Acquire all keys under one fencing token, or none."""
    return AcquiredView.of(await locking.acquire_lock(mesh, **body.model_dump()))


@LOCKS.post("/v1/locks/renew", needs=ACQUIRE)
async def renew_lock(mesh: MeshServices, body: RenewRequest) -> LockView:
    """Renew the lease of a lock and all of its keys."""
    return LockView.of(await mesh.locks.renew_by_token(body.lock_key, body.fence_token, ttl=body.ttl))


@LOCKS.post("/v1/locks/release", needs=NOTHING)
async def release_lock(mesh: MeshServices, body: ReleaseRequest) -> LockView:
    """Release a lock and all of its keys."""
    return LockView.of(await mesh.locks.release_by_token(body.lock_key, body.fence_token))


@LOCKS.post("/v1/locks/release-held", needs=NOTHING)
async def release_held_locks(mesh: MeshServices, body: ReleaseHeldRequest) -> list[LockView]:
    """Release the lock of an agent of this node on a key, or all of its locks, without their tokens."""
    released = await mesh.locks.release_held(body.lock_key, agent=body.agent)
    return [LockView.of(lock) for lock in released]


@LOCKS.post("/v1/locks/break", needs=writes(BREAK))
async def break_lock(mesh: MeshServices, body: BreakRequest) -> BrokenView:
    """Break the locks on a key, with all of their keys; the op log records it."""
    op_id, holders = await mesh.locks.break_lock(body.lock_key, body.reason)
    return BrokenView(op_id, [HoldView.of(holder) for holder in holders])


@LOCKS.post("/v1/locks/check", needs=READS, scope=Scope.READ, load=Load.READ)
async def check_paths(mesh: MeshServices, body: CheckPathsRequest) -> list[ObstacleView]:
    """List the locks of other agents that cover these paths, and with `require_lock` paths without a lock."""
    holders = await mesh.locks.holders()
    found = await in_slices(obstacles_in_steps(body.paths, holders, body.agent))
    missing = unlocked(body.paths, holders, body.agent) if body.require_lock else []
    return [
        *(ObstacleView(each.path, HoldView.of(each.holder)) for some in found for each in some),
        *(ObstacleView(path, None) for path in missing),
    ]


@LOCKS.post("/v1/locks/sweep", needs=OWNER)
async def sweep_locks(mesh: MeshServices) -> SweptView:
    """Remove expired locks, as live nodes do by themselves."""
    return SweptView(await mesh.locks.sweep_expired_distributed_locks())
