"""Needs: what an agent must be granted for an operation. The transaction of the write decides for good."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vox_mesh.errors import BadValue, NotKnown
from vox_mesh.http.principals.outputs import reads_outputs
from vox_mesh.http.principals.ownership import owns_job, owns_message
from vox_mesh.http.problems import Problem
from vox_mesh.model.grants.capability import EXECUTE, READ, RECEIVE, SCHEDULE, TAKE, Act
from vox_mesh.model.grants.needs import NEEDS
from vox_mesh.model.messages.records import ROLE
from vox_mesh.oplog.grants.known_agents import KnownAgents

if TYPE_CHECKING:
    from vox_mesh.runtime.services import MeshServices

FindActs = Callable[[str, Mapping[str, Any]], Iterable[Act]]
"""Returns the acts of a request, of an agent and with these inputs."""

IsOwn = Callable[["MeshServices", str, Mapping[str, Any]], Awaitable[bool]]
"""Returns whether a request with these inputs is about things of an agent."""


class Need(NamedTuple):
    """What an agent needs: one action of each group or, if `acts` says it exactly, all of its acts."""

    actions: tuple[tuple[str, ...], ...]
    acts: FindActs | None = None
    is_for_owner: bool = False
    """Whether no grant allows it: it is for the owner's side."""

    is_signed: bool = False
    """Whether the agent must sign the request itself."""

    is_own: IsOwn | None = None
    """For its own things, an agent needs no grant."""

    @property
    def words(self) -> list[str]:
        """Return the actions that are all needed, as documents show them; one may be a choice of several."""
        if self.is_signed:
            return ["signature"]
        return ["owner"] if self.is_for_owner else [" or ".join(group) for group in self.actions]

    @property
    def is_read(self) -> bool:
        """Return whether it is needed to read what concerns others, which is redacted for agents."""
        return self.actions == ((READ,),)

    async def allows_own(self, mesh: MeshServices, agent: str | None, inputs: Mapping[str, Any]) -> bool:
        """Return whether a request is about things of the agent; what does not exist is not."""
        if self.is_own is None or agent is None:
            return False
        with suppress(NotKnown, BadValue):
            return await self.is_own(mesh, agent, inputs)
        return False

    def check(self, known: KnownAgents, agent: str, inputs: Mapping[str, Any]) -> None:
        """Raise 403 if no grant of the agent can allow a request with these inputs."""
        if self.is_for_owner:
            raise Problem(HTTPStatus.FORBIDDEN, "owner_only", "this is for the owner's side, not for agents")
        if not known.needs_grant(agent):
            return
        if self.acts is not None:
            acts = list(self.acts(agent, inputs))
            if not known.may_ask_for(agent, acts):
                raise _not_granted(agent, acts)
            return
        for group in self.actions:
            if not known.may_try(agent, group):
                raise _not_granted(agent, group)


def _not_granted(agent: str, wanted: Sequence[object]) -> Problem:
    named = " or ".join(f"`{each}`" for each in wanted[:3])
    return Problem(
        HTTPStatus.FORBIDDEN,
        "not_granted",
        f"no grant of {agent} in force allows {named}",
        f"ask the owner for a grant for {agent}",
        reason="not_granted",
    )


def need_of(needs: str | Need) -> Need:
    """Return the need that an action, or a need, describes."""
    return Need(((needs,),)) if isinstance(needs, str) else needs


def writes(kind: str, *, unless: IsOwn | None = None) -> Need:
    """Return the need to write an op of a kind, as the services and the verifier of the log check it."""
    return Need(NEEDS[kind].actions, is_own=unless)


SIGNATURE: Final = Need((), is_signed=True)
"""For what an agent proves with its key only."""

NOTHING: Final = Need(())
"""For what concerns the agent alone, or is proved by a token of its lock, claim or message."""

READS: Final = need_of(READ)
OWNER: Final = Need((), is_for_owner=True)
READS_JOB: Final = READS._replace(is_own=owns_job)
READS_MESSAGE: Final = READS._replace(is_own=owns_message)
READS_OUTPUTS: Final = Need(((READ,), (TAKE, SCHEDULE, EXECUTE)), is_own=reads_outputs)
"""For outputs of jobs: without both, an agent reads those of jobs that concern it only."""


def reads_of_others(name: str, model: str | None = None) -> Need:
    """Return the need to read about an agent that an input names; about itself an agent may always read."""

    def acts(agent: str, inputs: Mapping[str, Any]) -> Iterable[Act]:
        value = inputs[name] if model is None else getattr(inputs[model], name)
        return () if value == agent else (Act(READ),)

    return Need(((READ,),), acts)


def receives(model: str) -> Need:
    """Return the need to receive messages: of its own an agent may, of roles with a grant."""

    def acts(_: str, inputs: Mapping[str, Any]) -> Iterable[Act]:
        roles = inputs[model].roles
        named = roles.split(",") if isinstance(roles, str) else roles or ()
        return [Act(RECEIVE, ROLE + role) for role in named]

    return Need(((RECEIVE,),), acts)
