"""Needs: what an agent must be granted for an operation. The transaction of the write decides for good."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from vox_mesh.http.problems import Problem
from vox_mesh.model.grants.capability import ABORT, EXECUTE, READ, RECEIVE, SCHEDULE, TAKE, Act
from vox_mesh.model.messages.records import ROLE
from vox_mesh.oplog.grants.known_agents import KnownAgents

FindActs = Callable[[str, Mapping[str, Any]], Iterable[Act]]
"""Returns the acts of a request, of an agent and with these inputs."""


class Need(NamedTuple):
    """What an agent needs: one of these actions or, if `acts` says it exactly, all of its acts."""

    actions: tuple[str, ...]
    acts: FindActs | None = None
    is_for_owner: bool = False
    """Whether no grant allows it: it is for the owner's side."""

    is_signed: bool = False
    """Whether the agent must sign the request itself."""

    @property
    def words(self) -> list[str]:
        """Return the actions, as documents show them."""
        if self.is_signed:
            return ["signature"]
        return ["owner"] if self.is_for_owner else list(self.actions)

    @property
    def is_read(self) -> bool:
        """Return whether it is needed to read what concerns others, which is redacted for agents."""
        return self.actions == (READ,)

    def check(self, known: KnownAgents, agent: str, inputs: Mapping[str, Any]) -> None:
        """Raise 403 if no grant of the agent can allow a request with these inputs."""
        if self.is_for_owner:
            raise Problem(HTTPStatus.FORBIDDEN, "owner_only", "this is for the owner's side, not for agents")
        if not known.needs_grant(agent):
            return
        if self.acts is None:
            is_allowed = not self.actions or known.may_try(agent, self.actions)
            wanted: Sequence[object] = self.actions
        else:
            wanted = acts = list(self.acts(agent, inputs))
            is_allowed = known.may_ask_for(agent, acts)
        if not is_allowed:
            named = " or ".join(f"`{each}`" for each in wanted[:3])
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "not_granted",
                f"no grant of {agent} in force allows {named}",
                f"ask the owner for a grant for {agent}",
                reason="not_granted",
            )


def need_of(needs: str | Need) -> Need:
    """Return the need that an action, or a need, describes."""
    return Need((needs,)) if isinstance(needs, str) else needs


SIGNATURE: Final = Need((), is_signed=True)
"""For what an agent proves with its key only."""

NOTHING: Final = Need(())
"""For what concerns the agent alone, or is proved by a token of its lock, claim or message."""

READS: Final = Need((READ,))
OWNER: Final = Need((), is_for_owner=True)
SCHEDULES: Final = Need((SCHEDULE, EXECUTE))
ENDS_JOBS: Final = Need((ABORT,))
WORKS: Final = Need((TAKE, SCHEDULE))
"""For outputs of jobs, which can't be redacted: agents that work on jobs, or schedule them, read them."""


def reads_of_others(name: str, model: str | None = None) -> Need:
    """Return the need to read about an agent that an input names; about itself an agent may always read."""

    def acts(agent: str, inputs: Mapping[str, Any]) -> Iterable[Act]:
        value = inputs[name] if model is None else getattr(inputs[model], name)
        return () if value == agent else (Act(READ),)

    return Need((READ,), acts)


def receives(model: str) -> Need:
    """Return the need to receive messages: of its own an agent may, of roles with a grant."""

    def acts(_: str, inputs: Mapping[str, Any]) -> Iterable[Act]:
        roles = inputs[model].roles
        named = roles.split(",") if isinstance(roles, str) else roles or ()
        return [Act(RECEIVE, ROLE + role) for role in named]

    return Need((RECEIVE,), acts)
