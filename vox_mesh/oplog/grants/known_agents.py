"""Known agents: the admitted agents and their grants, as a process remembers them for up to a second.

So a request of an agent usually reads nothing from the database. Before one is refused, it is asked again: an
agent may act right after its grant.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from vox_mesh.errors import MeshError, Unreachable
from vox_mesh.model.grants.capability import READ, RECEIVE, TAKE, Act, Capability
from vox_mesh.model.grants.history import GrantHistory
from vox_mesh.model.locks.patterns import prefix_covers
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.oplog.grants.grant_log import GrantLog
from vox_mesh.oplog.grants.shared_reading import SharedReading

_log = logging.getLogger(__name__)

_PATIENCE_S: Final = 0.5
"""How long a request waits for news, if something is known already."""

_FIRST_S: Final = 2.0
"""How long it waits otherwise."""

_NEVER_ASKED: Final = frozenset({READ, RECEIVE, TAKE})
"""Actions that write no op which could be approved: reading is not decided on again."""


class KnownAgents:
    """What a node knows about the agents of its mesh, without asking the database each time."""

    def __init__(self, log: GrantLog, clock: MeshClock, monotonic: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._history: GrantHistory | None = None
        self._reading = SharedReading(self._read, monotonic)

    async def refresh(self) -> None:
        """Read the log if what is known is older than a second.

        While the database does not answer, the last known state is used. The transaction of each write checks
        again.

        Raises:
            Unreachable: Nothing is known yet.
        """
        await self._reading.reuse()
        self._refuse_if_unknown()

    async def renew(self) -> None:
        """Read the log, before a request is refused for what may have changed since; else as `refresh`."""
        await self._reading.renew()
        self._refuse_if_unknown()

    def _refuse_if_unknown(self) -> None:
        if self._history is None:
            raise Unreachable("agents of the mesh are not known yet: the database does not answer")

    async def _read(self) -> bool:
        try:
            async with asyncio.timeout(_FIRST_S if self._history is None else _PATIENCE_S):
                self._history = await self._log.history()
        except (MeshError, TimeoutError) as error:
            _log.debug("agents not read: %s", error)
            return False
        return True

    @property
    def _known(self) -> GrantHistory:
        assert self._history is not None, "nothing was read yet"
        return self._history

    @property
    def is_strict(self) -> bool:
        """Return whether nothing is allowed without a grant."""
        return self._known.is_strict()

    def key_of(self, agent: str) -> str | None:
        """Return the public key with which an agent was admitted, the last time."""
        admitted = self._known.admission(agent)
        return None if admitted is None else admitted.public_key

    def needs_grant(self, agent: str) -> bool:
        """Return whether an agent acts by its grants only: it was admitted, or the mesh is strict."""
        return self.is_strict or self._known.admission(agent) is not None

    def has_grant(self, agent: str) -> bool:
        """Return whether an agent has any grant in force."""
        return any(True for _ in self._capabilities(agent))

    def lines_of(self, agent: str) -> list[str]:
        """Return the capabilities of the grants in force of an agent, as lines."""
        return list(dict.fromkeys(map(str, self._capabilities(agent))))

    def may_try(self, agent: str, actions: Sequence[str]) -> bool:
        """Return whether a grant in force allows one of these actions on anything, or after an approval."""
        found = list(self._capabilities(agent))
        return any(
            prefix_covers(own.act.action, action) and _lets_try(own, action)
            for own in found
            for action in actions
        )

    def may_ask_for(self, agent: str, acts: Sequence[Act]) -> bool:
        """Return whether grants in force allow all of these acts, or after an approval."""
        found = list(self._capabilities(agent))
        return all(any(own.act.covers(act) and _lets_try(own, act.action) for own in found) for act in acts)

    def allows_any(self, agent: str, acts: Sequence[Act]) -> bool:
        """Return whether a grant in force allows one of these acts, without an approval."""
        return any(own.act.covers(act) and not own.asks for own in self._capabilities(agent) for act in acts)

    def _capabilities(self, agent: str) -> Iterator[Capability]:
        for record in self._known.in_force(self._clock.now_ms, agent):
            yield from record.grant.terms.capabilities


def _lets_try(capability: Capability, action: str) -> bool:
    """Return whether an action may be tried by a capability: if it asks, only what can be approved."""
    return not capability.asks or action not in _NEVER_ASKED
