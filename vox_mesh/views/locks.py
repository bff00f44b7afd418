"""Views of locks, for everyone and for their holders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vox_mesh.errors import BadValue, NotKnown, StaleFence
from vox_mesh.locks.locks import Locks
from vox_mesh.model.locks.records import Holder, Lock
from vox_mesh.runtime.services import MeshServices

if TYPE_CHECKING:
    from vox_mesh.rhythm.beat_locks import BeatLocks


@dataclass(frozen=True)
class HoldView:
    """A hold by column."""

    lock_key: str
    fence_token: int
    holder_node: str
    holder_agent: str
    is_shared: bool
    acquired_at: str
    expires_at: str
    waiting: int
    age_ms: int
    left_ms: int

    @classmethod
    def of(cls, holder: Holder) -> HoldView:
        """Return the view of a hold, for everyone."""
        row = holder._asdict()
        del row["now_ms"], row["request_id"]
        return cls(**row, age_ms=round(holder.age_s * 1_000), left_ms=round(holder.left_s * 1_000))


@dataclass(frozen=True)
class LockView:
    """A lock that was just acquired, renewed or released, with all of its keys."""

    lock_keys: Sequence[str]
    fence_token: int
    holder_node: str
    holder_agent: str
    is_shared: bool
    expires_at: str

    @classmethod
    def of(cls, held: Lock) -> LockView:
        """Return the view of a lock, for its holder."""
        return cls(
            *(held.keys, held.fence_token, held.holder_node, held.holder_agent),
            *(held.is_shared, held.expires_at),
        )


async def choose_lock_service(
    mesh: MeshServices, *, ttl: float | None, until: str | None, **asked: Any
) -> tuple[Locks | BeatLocks, dict[str, Any]]:
    """Return the service to ask for a lock and its arguments: by TTL, or until a rhythm boundary."""
    if until is None:
        return mesh.locks, {**asked, "ttl": ttl}
    if ttl is not None:
        raise BadValue("a lock is either for a time or until something ends", hint="give ttl or until")
    await mesh.rhythm.look()
    return mesh.rhythm.holds, {**asked, "until": until}


async def find_held_lock(mesh: MeshServices, key: str, token: int) -> Lock:
    """Return the lock held on a key under this token."""
    try:
        return await mesh.locks.find(key, token)
    except StaleFence:
        raise _not_held(key, token) from None


async def release_lock_under(mesh: MeshServices, key: str, token: int) -> Lock:
    """Release the lock held on a key under this token, with all of its keys."""
    held = await find_held_lock(mesh, key, token)
    if not await mesh.locks.release(held):
        raise _not_held(key, token)
    return held


def _not_held(key: str, token: int) -> NotKnown:
    return NotKnown(f"{key} is not held under token {token}", hint="see `vox-mesh lock list`")
