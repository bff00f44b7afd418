"""Views of locks, for everyone and for their holders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from vox_mesh.model.locks.pattern_index import PatternIndex
from vox_mesh.model.locks.records import Holder, Lock, LockWaiter, SessionKind
from vox_mesh.views.record_view import RecordView

_MAX_BLOCKING: Final = 20
"""The maximum number of held keys that are listed of a waiter."""


@dataclass(frozen=True)
class HoldView(RecordView, record=Holder, without=("request_id", "now_ms")):
    """A hold by column.

    `session`: what keeps it renewed, and `session_pid` the process; it is believed until `expires_at`.
    """

    session_pid: int | None
    session: SessionKind | None
    age_ms: int
    left_ms: int

    @classmethod
    def of(cls, holder: Holder) -> HoldView:
        """Return the view of a hold, for everyone."""
        return cls.from_record(
            holder,
            session=holder.session,
            session_pid=holder.session_pid or None,
            age_ms=round(holder.age_s * 1_000),
            left_ms=round(holder.left_s * 1_000),
        )


@dataclass(frozen=True)
class LockWaiterView(RecordView, record=LockWaiter, without=("now_ms",)):
    """A waiter by column.

    `place`: in the queue of its key, from 1. `blocked_by`: the held keys that it waits for; without any, it
    waits for those before it.
    """

    age_ms: int
    place: int
    blocked_by: list[str]


def waiter_views(waiters: Sequence[LockWaiter], holders: Sequence[Holder]) -> Iterator[LockWaiterView]:
    """Yield the views of waiters, which are in the order of each key's queue."""
    held = PatternIndex(each.lock_key for each in holders)
    exclusive = PatternIndex(each.lock_key for each in holders if not each.is_shared)
    places = Counter[str]()
    for each in waiters:
        places[each.lock_key] += 1
        blocked_by = (exclusive if each.is_shared else held).matching(each.lock_key)
        yield LockWaiterView.from_record(
            each,
            age_ms=round(each.age_s * 1_000),
            place=places[each.lock_key],
            blocked_by=blocked_by[:_MAX_BLOCKING],
        )


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
    def of(cls, lock: Lock) -> LockView:
        """Return the view of a lock, for its holder."""
        return cls(
            lock_keys=lock.keys,
            fence_token=lock.fence_token,
            holder_node=lock.holder_node,
            holder_agent=lock.holder_agent,
            is_shared=lock.is_shared,
            expires_at=lock.expires_at,
        )


@dataclass(frozen=True)
class AcquiredView(LockView):
    """A lock that was just acquired; `is_renewed`: its agent held it already."""

    is_renewed: bool

    @classmethod
    def of(cls, lock: Lock) -> AcquiredView:
        """Return the view of a lock, for its holder."""
        return cls(**vars(LockView.of(lock)), is_renewed=lock.is_renewed)


@dataclass(frozen=True)
class HeartbeatView:
    """An agent that has sent a heartbeat, and its locks that last as long as it does so."""

    agent_id: str
    locks: list[LockView]

    @classmethod
    def of(cls, agent_id: str, locks: Sequence[Lock]) -> HeartbeatView:
        """Return the answer to a heartbeat."""
        return cls(agent_id, [LockView.of(each) for each in locks])
