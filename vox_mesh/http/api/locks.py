"""Locks: leases on keys with fencing tokens."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Final, Literal

from pydantic import Field

from vox_mesh.errors import MeshError
from vox_mesh.http.access import Scope
from vox_mesh.http.api.operations import CALL_S, MAX_WAIT_S, Asked, Operations, Seconds, Text, Wait
from vox_mesh.http.api.pages import Page, PageAsked
from vox_mesh.locks.path_guard import obstacles
from vox_mesh.runtime import locking
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.locks import HoldView, LockView

LOCKS: Final = Operations("locks")

_MAX_KEYS: Final = 100
_Agent = Annotated[str, Field(min_length=1, max_length=128)]
_Token = Annotated[int, Field(ge=1, lt=2**63)]


class LocksAsked(PageAsked):
    """The filter of a list of locks."""

    key: Text | None = None


class Acquiring(Asked):
    """A lock as it is wanted: all of its keys, or none; for a time, or until the phase or the bar ends."""

    keys: Annotated[list[Text], Field(min_length=1, max_length=_MAX_KEYS)]
    agent: _Agent
    ttl: Seconds | None = None
    until: Literal["phase", "bar"] | None = None
    wait: Wait = 0.0
    shared: bool = False


class HoldBody(Asked):
    """A hold, named by one of its keys and its token."""

    lock_key: Text
    fence_token: _Token


class Renewing(HoldBody):
    """For how long it is to be held, from now on."""

    ttl: Seconds | None = None


class Breaking(Asked):
    """Whose holds are to end, and why."""

    lock_key: Text
    reason: Text


class Guarding(Asked):
    """Paths that an agent wants to change."""

    paths: Annotated[list[Text], Field(min_length=1, max_length=1_000)]
    agent: _Agent


@dataclass(frozen=True)
class BrokenView:
    """The holds that were ended, by this op."""

    op_id: str
    broken: list[HoldView]


@dataclass(frozen=True)
class ObstacleView:
    """A path, and a hold of somebody else that is in its way."""

    path: str
    holder: HoldView


@dataclass(frozen=True)
class SweptView:
    """How many holds that had expired were removed."""

    swept: int


@LOCKS.get("/v1/locks")
async def list_locks(mesh: MeshServices, query: LocksAsked) -> Page[HoldView]:
    """List who holds what; with a key, only what is in its way."""
    holders = await (mesh.locks.holders() if query.key is None else mesh.locks.in_the_way(query.key))
    views = [HoldView.of(holder) for holder in holders]
    return query.page_of(views, lambda view: f"{view.lock_key}\0{view.fence_token:020}\0{view.holder_agent}")


async def _release(mesh: MeshServices, held: LockView) -> None:
    with suppress(MeshError):  # if the release fails, the lease expires by itself
        await mesh.locks.release_by_token(held.lock_keys[0], held.fence_token)


@LOCKS.post("/v1/locks", status=HTTPStatus.CREATED, takes_s=MAX_WAIT_S + CALL_S, waits=True, undo=_release)
async def acquire_lock(mesh: MeshServices, body: Acquiring) -> LockView:
    """Acquire all of the keys under one token, or none of them."""
    return LockView.of(await locking.acquire_lock(mesh, **body.model_dump()))


@LOCKS.post("/v1/locks/renew")
async def renew_lock(mesh: MeshServices, body: Renewing) -> LockView:
    """Hold a lock again, from now on, with all of its keys."""
    return LockView.of(await mesh.locks.renew_by_token(body.lock_key, body.fence_token, ttl=body.ttl))


@LOCKS.post("/v1/locks/release")
async def release_lock(mesh: MeshServices, body: HoldBody) -> LockView:
    """Let go of a lock, with all of its keys."""
    return LockView.of(await mesh.locks.release_by_token(body.lock_key, body.fence_token))


@LOCKS.post("/v1/locks/break")
async def break_lock(mesh: MeshServices, body: Breaking) -> BrokenView:
    """End the holds of a key, with all of their keys; it is recorded in the op log."""
    op_id, holders = await mesh.locks.break_lock(body.lock_key, body.reason)
    return BrokenView(op_id, [HoldView.of(holder) for holder in holders])


@LOCKS.post("/v1/locks/check", scope=Scope.READ)
async def check_paths(mesh: MeshServices, body: Guarding) -> list[ObstacleView]:
    """Which holds of others are in the way of changing these paths; none: nothing is."""
    found = obstacles(body.paths, await mesh.locks.holders(), body.agent)
    return [ObstacleView(each.path, HoldView.of(each.holder)) for each in found]


@LOCKS.post("/v1/locks/sweep")
async def sweep_locks(mesh: MeshServices) -> SweptView:
    """Remove holds that have expired; live nodes do so by themselves."""
    return SweptView(await mesh.locks.sweep_expired_distributed_locks())
