"""The acting agent: in whose name the current task changes the mesh. The log names it."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Final

_agent: Final = ContextVar[str | None]("vox_mesh_acting_agent", default=None)


def current_agent() -> str | None:
    """Return the agent that the current task acts for, if one was named."""
    return _agent.get()


class _Acting:
    __slots__ = ("_name", "_token")

    def __init__(self, name: str) -> None:
        self._name = name
        self._token: Token[str | None] | None = None

    def __enter__(self) -> None:
        self._token = _agent.set(self._name)

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _agent.reset(self._token)


def acting_as(agent: str) -> _Acting:
    """Name the agent that acts within the block, and in tasks started there."""
    from vox_mesh.model.messages.records import checked_agent  # imported late: short commands do without

    return _Acting(checked_agent(agent))
