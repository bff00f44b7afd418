"""The relay's HTTP client: a peer that hangs up, at any moment, is a failed delivery and nothing else."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Final, cast

import anyio
import pytest
from anyio.abc import SocketStream

from vox_mesh import Message, run
from vox_mesh.errors import RelayFailed
from vox_mesh.http.relay.client import HttpRelayClient
from vox_mesh.messages.relay_outbound import Peer

_TRIES: Final = 20
_RESET: Final = struct.pack("ii", 1, 0)
_ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

_MESSAGE: Final = Message(
    message_uuid="01J0000000000000000000000A",
    sender_agent="a",
    receiver_agent="b",
    msg_type="note",
    payload="{}",
    priority=1,
    thread_id=None,
    correlation_id=None,
    reply_to=None,
    expires_ms=None,
    ack_by_ms=None,
    max_attempts=10,
    hlc="",
    sender_node="n",
    sender_incarnation=1,
    traceparent=None,
)


class HangUp(StrEnum):
    """When a peer hangs up."""

    ON_ACCEPT = "on accept"
    AFTER_ACCEPT = "after accept"
    AFTER_REQUEST = "after the request"
    IN_ANSWER = "in the answer"


def _serve(listening: socket.socket, when: HangUp) -> None:
    """Hang up on this many connections, and answer the ones that come later."""
    for n in range(_TRIES + 1):
        connection, _ = listening.accept()
        with connection:
            if n < _TRIES:
                _hang_up(connection, when)
            else:
                connection.recv(2**16)
                connection.sendall(_ANSWER)


def _hang_up(connection: socket.socket, when: HangUp) -> None:
    if when is HangUp.ON_ACCEPT:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    elif when is HangUp.AFTER_REQUEST:
        connection.recv(2**16)
    elif when is HangUp.IN_ANSWER:
        connection.recv(2**16)
        connection.sendall(_ANSWER[:-10])


@contextmanager
def _peer(when: HangUp) -> Iterator[Peer]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=_serve, args=(listening, when))
        serving.start()
        yield Peer("far", f"http://127.0.0.1:{listening.getsockname()[1]}")
        serving.join(60)


def test_a_connection_that_is_lost_while_it_is_made_is_a_failed_delivery(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect = anyio.connect_tcp

    async def connect_and_lose(*values: Any, **options: Any) -> SocketStream:
        stream: Any = await connect(*values, **options)
        stream._transport.abort()  # as a reset of the peer does
        await stream._protocol.read_event.wait()
        return cast(SocketStream, stream)

    async def deliver(peer: Peer) -> None:
        courier = HttpRelayClient("near", None)
        with pytest.raises(RelayFailed, match="getpeername"):
            await courier.deliver(peer, [_MESSAGE], stored=True)
        await courier.close()

    monkeypatch.setattr(anyio, "connect_tcp", connect_and_lose)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        run(deliver(Peer("far", f"http://127.0.0.1:{listening.getsockname()[1]}")))


@pytest.mark.parametrize("when", HangUp)
def test_a_peer_that_hangs_up_is_a_failed_delivery_and_the_next_one_arrives(when: HangUp) -> None:
    async def deliver(peer: Peer) -> None:
        courier = HttpRelayClient("near", None)
        for _ in range(_TRIES):
            with pytest.raises(RelayFailed):
                await courier.deliver(peer, [_MESSAGE], stored=True)
        await courier.deliver(peer, [_MESSAGE], stored=True)
        await courier.close()

    with _peer(when) as peer:
        run(deliver(peer))  # on uvloop, as nodes do
