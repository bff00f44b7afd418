"""Unread mail: part of the results of other tools, so that an agent that only works hears of it."""

from __future__ import annotations

from typing import Any, Final

from vox_mesh.hosts.mcp.caller import OperationFailed, ToolCaller
from vox_mesh.model.base.recent import Recent

_EVERY_MS: Final = 1_000
_MAX_AGENTS: Final = 1_024
_COUNTED: Final = 20


class UnreadMail:
    """Counts the unread messages of agents, each at most every few seconds."""

    def __init__(self) -> None:
        self._asked_ms = Recent[str, int](_MAX_AGENTS)

    async def of(self, caller: ToolCaller) -> dict[str, Any] | None:
        """Return how many messages wait, and for how long the oldest; `None` if none, or not asked now."""
        agent, now_ms = caller.agent, caller.now_ms
        if agent is None or now_ms - self._asked_ms.get(agent, 0) < _EVERY_MS:
            return None
        self._asked_ms[agent] = now_ms
        try:
            page = await caller.perform(
                "look_into_inbox", path={"agent": agent}, query={"limit": str(_COUNTED)}
            )
        except OperationFailed:
            return None  # the result of the tool counts
        waiting = page["items"]
        if not waiting:
            return None
        sent = [int(each["hlc"][:13]) for each in waiting if each["hlc"][:13].isdecimal()]
        count = f"{len(waiting)}+" if page["next"] else len(waiting)
        return {"count": count, "oldest_s": max(0, (now_ms - min(sent, default=now_ms)) // 1_000)}
