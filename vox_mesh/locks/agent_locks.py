"""The locks of one agent: renewed when it acquires them again, and released without their tokens.

A holder is a node and an agent. Processes that use one name on one node are one holder: they share its locks
and their tokens, and each of them can release them. An agent of the same name on another node is another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple

from vox_mesh.errors import NotKnown, StaleFence
from vox_mesh.locks.holders import LockHolders, lock_of
from vox_mesh.locks.scripts import LockRequest
from vox_mesh.model.locks.records import Holder, Lock

Renew = Callable[[Lock, float], Awaitable[Lock]]
Release = Callable[[Lock], Awaitable[bool]]

_OWN_HINT: Final = "run `vox-mesh lock list --agent {agent}` to see its locks"
_OTHERS_HINT: Final = "only its holder releases a lock; `vox-mesh lock break` ends one whose agent hangs"
_MAX_NAMES: Final = 5


class LockOwner(NamedTuple):
    """A node and an agent."""

    node: str
    agent: str

    @classmethod
    def of(cls, request: LockRequest) -> LockOwner:
        """Return who asks."""
        return cls(request.holder_node, request.holder_agent)

    def owns(self, holder: Holder) -> bool:
        """Return whether a lock is held by exactly this agent on this node."""
        return (holder.holder_node, holder.holder_agent) == self


class AgentLocks:
    """Find, renew and release the locks of an agent. Every change names the token and the request."""

    def __init__(
        self, holders: LockHolders, renew: Renew, release: Release, monotonic: Callable[[], float]
    ) -> None:
        self._holders = holders
        self._renew = renew
        self._release = release
        self._monotonic = monotonic

    async def renew_if_held(self, request: LockRequest) -> Lock | None:
        """Renew the lock that covers all keys of the request in its mode; `None` if there is none.

        A lease is never shortened: it ends after the requested TTL, or when it would have ended anyway.
        """
        owner = LockOwner.of(request)
        holders = [each for each in await self._holders.all(request.keys) if owner.owns(each)]
        for rows in by_request(each for each in holders if each.is_shared == request.is_shared):
            if {each.lock_key for each in rows} >= set(request.keys):
                return await self._renew_whole(rows[0], request.ttl)
        return None

    async def _renew_whole(self, found: Holder, ttl: float) -> Lock | None:
        rows = await self._rows_of([found.request_id])
        if not rows:
            return None
        try:
            lock = await self._renew(lock_of(rows[0], self._monotonic()), max(ttl, found.left_s))
        except StaleFence:  # it has just ended
            return None
        lock.is_renewed = True
        return lock

    async def release(self, owner: LockOwner, keys: Sequence[str] | None) -> list[Lock]:
        """Release the owner's locks on these keys, or all of them, each with all of its keys.

        Raises `NotKnown` if it holds none of the given keys.
        """
        found = await self._holders.all(keys)
        holders = [each for each in found if owner.owns(each)]
        if keys is not None and not holders:
            raise _not_held(keys, owner, found)
        locks = [
            lock_of(rows, self._monotonic())
            for rows in await self._rows_of({each.request_id for each in holders})
        ]
        ended = await asyncio.gather(*map(self._release, locks), return_exceptions=True)
        for each in ended:
            if isinstance(each, BaseException):
                raise each
        return [lock for lock, was_held in zip(locks, ended, strict=True) if was_held]

    async def _rows_of(self, request_ids: Iterable[str]) -> list[list[Holder]]:
        """Return the rows of whole locks: one list for each lock, with all of its keys."""
        wanted = set(request_ids)
        return by_request(each for each in await self._holders.all() if each.request_id in wanted)


def by_request(holders: Iterable[Holder]) -> list[list[Holder]]:
    """Return the rows of each lock: one row for each of its keys."""
    locks: dict[str, list[Holder]] = {}
    for each in holders:
        locks.setdefault(each.request_id, []).append(each)
    return list(locks.values())


def _not_held(keys: Sequence[str], owner: LockOwner, others: Sequence[Holder]) -> NotKnown:
    """Return the error for keys that the owner does not hold; `others` hold them."""
    named = ", ".join(keys)
    refusal = f"{named} is not held by {owner.agent} on {owner.node}"
    if not others:
        return NotKnown(refusal, hint=_OWN_HINT.format(agent=owner.agent))
    agents = sorted({_name(each, owner) for each in others})
    more = f" and {len(agents) - _MAX_NAMES} more" if len(agents) > _MAX_NAMES else ""
    return NotKnown(f"{refusal}: held by {', '.join(agents[:_MAX_NAMES])}{more}", hint=_OTHERS_HINT)


def _name(holder: Holder, owner: LockOwner) -> str:
    """Return the holder's agent, and its node if the agent has the owner's name."""
    is_namesake = holder.holder_agent == owner.agent
    return f"{holder.holder_agent} on {holder.holder_node}" if is_namesake else holder.holder_agent
