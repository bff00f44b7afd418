"""The relay between simulated nodes: delivery as over HTTP, over equally bad connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from proof.simulate.loop import SimulatedLoop, SimulatedProcess
from proof.simulate.network import Channel, served
from vox_mesh.errors import (
    DatabaseUnavailable,
    MeshError,
    OutcomeUnknown,
    Overloaded,
    RelayFailed,
    RelayRefused,
)
from vox_mesh.http.relay.client import SignOrder
from vox_mesh.messages.relay_inbound import Reception
from vox_mesh.messages.relay_outbound import Outbox, Peer
from vox_mesh.model.messages.records import WIRE_FIELDS, Message
from vox_mesh.node import MeshNode

TIMEOUT_S: Final = 6.0
_TOKEN_ID: Final = "simulated"
_RETRYABLE: Final = (DatabaseUnavailable, OutcomeUnknown, Overloaded)
"""Errors that are not the fault of the message."""


class RelayReceiver:
    """The receiving end of a node's relay."""

    def __init__(self, loop: SimulatedLoop, process: SimulatedProcess, mesh: MeshNode) -> None:
        self.process: Final = process
        self._loop = loop
        self._reception = Reception(mesh.store, mesh.messages, mesh.clock, monotonic=loop.time)

    @property
    def follows_commits(self) -> bool:
        """Return whether the node learns of each commit at once."""
        return self._reception.follows_commits

    async def receive(
        self, channel: Channel, messages: Sequence[Message], *, stored: bool, order: str
    ) -> None:
        """Receive messages over a channel."""

        async def take() -> None:
            await self._reception.take(messages, stored=stored, order=order)

        await channel.ask(self.process, served(self._loop, self.process, take))


class SimulatedRelay:
    """The sending end of a node's relay."""

    def __init__(self, channel: Channel, receiver_of: Callable[[str], RelayReceiver | None]) -> None:
        self._channel = channel
        self._receiver_of = receiver_of
        self.sign_order: SignOrder | None = None

    async def deliver(self, peer: Peer, messages: Sequence[Message], *, stored: bool) -> bool:
        """Deliver messages to a node; return whether it learns of each commit at once."""
        receiver = self._receiver_of(peer.node_id)
        if receiver is None:
            raise RelayFailed(f"{peer.url} does not answer")
        assert self.sign_order is not None
        order = self.sign_order(messages, peer.node_id, stored=stored)
        try:
            sent = [_wire_form(each) for each in messages]
            await receiver.receive(self._channel, sent, stored=stored, order=order)
        except _RETRYABLE as error:
            raise RelayFailed(error.line) from None
        except MeshError as error:
            raise RelayRefused(error.line) from None
        return receiver.follows_commits

    async def close(self) -> None:
        """Do nothing."""


def _wire_form(message: Message) -> Message:
    """Return the fields of a message that are sent."""
    return Message(**{name: getattr(message, name) for name in (*WIRE_FIELDS, "after")})


def outbox_of(mesh: MeshNode, relay: SimulatedRelay, monotonic: Callable[[], float]) -> Outbox:
    """Connect a node's outbox to the simulated relay, and publish its address."""
    outbox = Outbox(
        relay,
        mesh.messages.directory,
        mesh.messages.relay_buffer,
        monotonic=monotonic,
        spooling=False,
        is_busy=lambda: mesh.store.is_busy,
    )
    relay.sign_order = mesh.messages.sign_order
    mesh.messages.relay_by(outbox)
    mesh.messages.directory.token_id = _TOKEN_ID
    mesh.presence.announce(f"http://{mesh.identity.node_id}:7400", _TOKEN_ID)
    return outbox
