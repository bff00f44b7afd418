"""The acting agent: in whose name the current task changes the mesh. The log names it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Final

from vox_mesh.errors import NotItsAgent

_agent: Final = ContextVar[str | None]("vox_mesh_acting_agent", default=None)
_principal: Final = ContextVar[str | None]("vox_mesh_principal", default=None)


def current_agent() -> str | None:
    """Return the agent that the current task acts for, if one was named."""
    return _agent.get()


def current_principal() -> str | None:
    """Return the agent that the current task acts for, if it has proved who it is."""
    return _principal.get()


def refuse_unless_own(thing: str, agent: str | None) -> None:
    """Raise `NotItsAgent` if the current task acts for a principal, and the thing is another agent's.

    A name without proof, as the owner's side gives it, restricts nothing.
    """
    principal = _principal.get()
    if principal is not None and principal != agent:
        raise NotItsAgent(f"{thing} is of {agent or 'no agent'}, not of {principal}")


@contextmanager
def acting_as_principal(agent: str) -> Iterator[None]:
    """Name the agent that acts within the block, and has proved who it is."""
    token = _principal.set(agent)
    try:
        with acting_as(agent):
            yield
    finally:
        _principal.reset(token)


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
    # Imported late: short commands do without.
    from vox_mesh.model.messages.records import checked_agent

    return _Acting(checked_agent(agent))
