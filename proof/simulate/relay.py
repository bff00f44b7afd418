"""The relay between nodes of one process: messages are brought as over HTTP, over lines as bad as those."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from proof.simulate.loop import House, SimulatedLoop
from proof.simulate.network import Way, served
from vox_mesh.errors import (
    DatabaseUnavailable,
    MeshError,
    OutcomeUnknown,
    Overloaded,
    RelayFailed,
    RelayRefused,
)
from vox_mesh.messages.directory import Peer
from vox_mesh.messages.relay_inbound import Reception
from vox_mesh.messages.relay_outbound import Outbox
from vox_mesh.model.messages.records import WIRE_FIELDS, Message
from vox_mesh.node import MeshNode

TIMEOUT_S: Final = 6.0
_AGAIN: Final = (DatabaseUnavailable, OutcomeUnknown, Overloaded)
"""Where the fault is not the message's."""


class Counter:
    """Where a life of a node takes what others bring."""

    def __init__(self, loop: SimulatedLoop, house: House, mesh: MeshNode) -> None:
        self.house: Final = house
        self._loop = loop
        self._reception = Reception(mesh.store, mesh.messages, mesh.clock, monotonic=loop.time)

    async def bring(self, way: Way, messages: Sequence[Message], *, stored: bool) -> None:
        """Bring messages here over a way."""

        async def take() -> None:
            await self._reception.take(messages, stored=stored)

        await way.ask(self.house, served(self._loop, self.house, take))


class Courier:
    """Brings messages to the counters of others."""

    def __init__(self, way: Way, counter_of: Callable[[str], Counter | None]) -> None:
        self._way = way
        self._counter_of = counter_of

    async def deliver(self, peer: Peer, messages: Sequence[Message], *, stored: bool) -> None:
        """Bring messages to a node."""
        counter = self._counter_of(peer.node_id)
        if counter is None:
            raise RelayFailed(f"{peer.url} does not answer")
        try:
            await counter.bring(self._way, [_written(each) for each in messages], stored=stored)
        except _AGAIN as error:
            raise RelayFailed(error.line) from None
        except MeshError as error:
            raise RelayRefused(error.line) from None

    async def close(self) -> None:
        """There is nothing to let go of."""


def _written(message: Message) -> Message:
    """What of a message travels."""
    return Message(**{name: getattr(message, name) for name in (*WIRE_FIELDS, "after")})


def outbox_of(mesh: MeshNode, courier: Courier, monotonic: Callable[[], float]) -> Outbox:
    """Have a node's messages brought from now on, and its own address told to others."""
    outbox = Outbox(
        courier,
        mesh.messages.directory,
        mesh.messages.relay_buffer,
        monotonic=monotonic,
        spooling=False,
        is_busy=lambda: mesh.store.is_busy,
    )
    mesh.messages.relay_by(outbox)
    mesh.presence.activity.control_addr = f"http://{mesh.identity.node_id}:7400"
    return outbox
