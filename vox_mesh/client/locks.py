"""Locks through a node."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from vox_mesh.client.connection import CALL_S, NodeConnection
from vox_mesh.client.long_wait import LongWait
from vox_mesh.client.records import holder_of, lock_of
from vox_mesh.errors import BadValue, LockHeld
from vox_mesh.model.base.durations import Duration, seconds_of, seconds_or_none
from vox_mesh.model.locks.records import Holder, Lock

_PAGE: Final = 500


class PathObstacle(NamedTuple):
    """A path, and another agent's lock that covers it; none if the agent needs a lock and has none."""

    path: str
    holder: Holder | None


class ClientLocks:
    """Acquires, renews and releases the locks of one agent."""

    def __init__(self, connection: NodeConnection) -> None:
        self._connection = connection

    async def acquire(
        self,
        keys: str | Sequence[str],
        *,
        agent: str | None = None,
        ttl: Duration | None = None,
        wait: Duration = 0.0,
        shared: bool = False,
        until: Literal["phase", "bar"] | None = None,
        or_renew: bool = False,
        session: Literal["heartbeats"] | None = None,
    ) -> Lock:
        """Acquire all of the keys, or none and raise `LockHeld`, after up to `wait` seconds."""
        if session not in (None, "heartbeats"):
            raise BadValue(
                "a lock of another user can't last as long as a process",
                hint="use --heartbeats, or run the command as the node's own user",
            )
        ttl_s = seconds_or_none("ttl", ttl)
        body: dict[str, Any] = {
            "keys": [keys] if isinstance(keys, str) else list(keys),
            "agent": agent or self._connection.agent,
            "ttl": ttl_s,
            "until": until,
            "shared": shared,
            "or_renew": or_renew,
            "session": session,
        }
        waiting = LongWait(seconds_of("wait", wait))
        while True:
            step = waiting.next_step()
            try:
                found = await self._connection.post(
                    "/v1/locks", {**body, "wait": step}, timeout_s=step + CALL_S
                )
            except LockHeld:
                if waiting.is_last:
                    raise
            else:
                return lock_of(found, _now_ms(), ttl_s)

    async def renew_by_token(self, key: str, fence_token: int, *, ttl: Duration | None = None) -> Lock:
        """Renew the lock that is held on a key under this token; raise `NotKnown` if there is none."""
        ttl_s = seconds_or_none("ttl", ttl)
        body = {"lock_key": key, "fence_token": fence_token, "ttl": ttl_s}
        return lock_of(await self._connection.post("/v1/locks/renew", body), _now_ms(), ttl_s)

    async def release_by_token(self, key: str, fence_token: int) -> Lock:
        """Release the lock that is held on a key under this token; raise `NotKnown` if there is none."""
        body = {"lock_key": key, "fence_token": fence_token}
        return lock_of(await self._connection.post("/v1/locks/release", body), _now_ms())

    async def release_held(
        self, keys: str | Sequence[str] | None = None, *, agent: str | None = None
    ) -> list[Lock]:
        """Release the locks of the agent on these keys, or all of its locks."""
        wanted = [keys] if keys is None or isinstance(keys, str) else keys
        found: list[Any] = []
        for key in wanted:
            body = {"agent": agent or self._connection.agent, "lock_key": key}
            found += await self._connection.post("/v1/locks/release-held", body)
        return [lock_of(each, _now_ms()) for each in found]

    async def holders(self) -> list[Holder]:
        """Return the current holders of all locks."""
        found: list[Holder] = []
        cursor: str | None = None
        while True:
            page = await self._connection.get("/v1/locks", limit=_PAGE, cursor=cursor)
            found += [holder_of(each) for each in page["items"]]
            cursor = page["next"]
            if cursor is None:
                return found

    async def check(
        self, paths: Sequence[str], *, agent: str | None = None, require_lock: bool = False
    ) -> list[PathObstacle]:
        """Return the locks of other agents that cover these paths, and the paths that need a lock."""
        body = {
            "paths": list(paths),
            "agent": agent or self._connection.agent,
            "require_lock": require_lock,
        }
        found = await self._connection.post("/v1/locks/check", body)
        return [
            PathObstacle(each["path"], None if each["holder"] is None else holder_of(each["holder"]))
            for each in found
        ]


def _now_ms() -> float:
    return time.time() * 1_000
