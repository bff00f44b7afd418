"""Two real nodes, and what can be sent to the HTTP service of one in the name of the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Self

import httpx
import orjson
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.nodes.shared_mesh import SharedMesh
from vox_mesh.http.access import Access
from vox_mesh.http.address import ListenAddress
from vox_mesh.http.connections import Patience
from vox_mesh.http.relay.endpoint import FROM, NODE, ORDER, PATH, STORED, Delivery, RelayLimits, wire
from vox_mesh.http.relay.keys import RelayKeys
from vox_mesh.http.service import Service
from vox_mesh.mesh import Mesh
from vox_mesh.messages.relay_inbound import Reception
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.messages.records import Message
from vox_mesh.node import MeshNode
from vox_mesh.store.script import new_key

SENDER: Final = "ann"
RECEIVER: Final = "ben"
AGENT: Final = "reviewer"
"""Who receives at the receiver's node."""

TOKEN: Final = "a-token-that-no-one-may-read"
TRACE: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PATIENCE_S: Final = 30.0
_LOOK_S: Final = 0.01


def unsigned(node: Mesh, **changes: Any) -> Message:
    """A message as this node would write it now, but for the changes."""
    plain = Message(
        message_uuid=new_key(),
        sender_agent="coder",
        receiver_agent=AGENT,
        msg_type="note",
        payload='{"text":"hello"}',
        priority=1,
        thread_id=None,
        correlation_id=None,
        reply_to=None,
        expires_ms=None,
        ack_by_ms=None,
        max_attempts=10,
        hlc=str(node.clock.tick()),
        sender_node=node.identity.node_id,
        sender_incarnation=node.incarnation,
        traceparent=None,
    )
    return plain._replace(**changes)


def signed(node: Mesh, message: Message, key: SigningKey | None = None) -> Message:
    """It, signed by the node, or with another key."""
    text = message.signed_text(*node.store.mesh_id)
    return message._replace(signature=(key or node.identity.key).sign(text))


def letter(node: Mesh, **changes: Any) -> Message:
    """A message as this node would send it now, but for the changes."""
    return signed(node, unsigned(node, **changes))


def stranger_key() -> SigningKey:
    """An unknown key."""
    return SigningKey(Ed25519PrivateKey.generate())


async def rows_of(node: Mesh) -> int:
    """How many messages are in the database."""
    counted = await node.store.read(
        "SELECT count(*) FROM a2a_messages WHERE scope_id = ?", (node.store.writer_id[0],), fresh=True
    )
    return int(counted[0][0])


def address_of(node: MeshNode) -> str:
    """What a node tells others of its service."""
    address = node.presence.activity.control_addr
    assert address is not None
    return address


def assert_problem(answer: httpx.Response, status: int, code: str) -> None:
    """The answer is a problem document of this kind, and names no secret."""
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    document = answer.json()
    assert (document["status"], document["code"]) == (status, code), document
    assert document["title"]
    assert document["detail"]
    assert TOKEN not in answer.text
    is_later = status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
    assert ("Retry-After" in answer.headers) == is_later


@dataclass
class Pair:
    """A node that sends, a node that receives, and a client of the second one's service."""

    sender: MeshNode
    receiver: MeshNode
    client: httpx.AsyncClient

    @property
    def url(self) -> str:
        """Where messages are brought to."""
        return address_of(self.receiver) + PATH

    @property
    def port(self) -> int:
        """The port of the receiver's service."""
        return int(address_of(self.receiver).rpartition(":")[2])

    def headers(self, *, stored: bool = True, **more: str) -> dict[str, str]:
        """The headers of a good request."""
        return {
            "Authorization": f"Bearer {TOKEN}",
            "Content-Type": "application/json",
            NODE: self.receiver.identity.node_id,
            FROM: self.sender.identity.node_id,
            STORED: "1" if stored else "0",
        } | more

    async def bring(self, *messages: Message, stored: bool = True) -> httpx.Response:
        """Bring messages, as a courier does."""
        order = self.sender.messages.sign_order(messages, self.receiver.identity.node_id, stored=stored)
        headers = self.headers(stored=stored) | {ORDER: order}
        return await self.post([wire(message) for message in messages], headers)

    async def post(
        self, body: Any, headers: Mapping[str, str] | None = None, *, stored: bool = True
    ) -> httpx.Response:
        """Post anything; what is not bytes as JSON."""
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        if headers is None:
            headers = self.headers(stored=stored)
        return await self.client.post(self.url, content=content, headers=headers)

    async def assert_serving(self) -> None:
        """A good request is still answered as it should be."""
        message = letter(self.sender)
        answer = await self.bring(message)
        assert answer.status_code == HTTPStatus.OK, answer.text
        assert answer.json() == {"message_uuids": [message.message_uuid]}

    async def next_message(self) -> Message:
        """Receive and acknowledge one message."""
        async with asyncio.timeout(PATIENCE_S):
            async for message in self.receiver.messages.receive(AGENT):
                await self.receiver.messages.ack(message)
                return message
        raise AssertionError("it ends only when it is cancelled")


@asynccontextmanager
async def open_pair(shared_mesh: SharedMesh, **more: Any) -> AsyncIterator[Pair]:
    """Two nodes of this mesh that can talk."""
    values = {"token": TOKEN} | more
    async with (
        Mesh.open(shared_mesh.settings(SENDER, **values)) as sender,
        Mesh.open(shared_mesh.settings(RECEIVER, **values)) as receiver,
        httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as client,
    ):
        await receiver.store.synced()
        yield Pair(sender, receiver, client)


@asynccontextmanager
async def serving(
    node: MeshNode,
    *,
    patience: Patience | None = None,
    limits: RelayLimits | None = None,
    keys: RelayKeys | None = None,
) -> AsyncIterator[tuple[Service, str]]:
    """A second service of a node, with less patience, other limits or keys of its own; and its address."""
    access = Access(TOKEN, relay_keys=keys)
    delivery = Delivery(
        node.identity.node_id, Reception(node.store, node.messages, node.clock), access, limits
    )
    service = Service(ListenAddress("127.0.0.1", 0, None, "VOX_MESH_BIND"), [delivery.add_to], patience)
    try:
        yield service, await service.start()
    finally:
        await service.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what the service does by itself, of which there is no event."""
    for _ in range(round(PATIENCE_S / _LOOK_S)):
        if condition():
            return
        await asyncio.sleep(_LOOK_S)
    raise AssertionError("it did not happen in time")


class Wire:
    """A bare connection to a service."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    async def send(self, data: bytes) -> None:
        """Write; what the other side does not want any more is no fault."""
        try:
            self.writer.write(data)
            await self.writer.drain()
        except OSError:
            return

    async def to_the_end(self) -> bytes:
        """All that comes until the other side hangs up."""
        answer = b""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    part = await self.reader.read(2**16)
                except OSError:
                    return answer
                if not part:
                    return answer
                answer += part

    async def answer(self) -> tuple[int, bytes]:
        """One answer: its status and its body."""
        async with asyncio.timeout(PATIENCE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            length = next(
                int(line.partition(":")[2])
                for line in head.splitlines()
                if line.lower().startswith("content-length")
            )
            return int(head.split()[1]), await self.reader.readexactly(length)


def raw_request(headers: Mapping[str, str], body: bytes, **changes: str | None) -> bytes:
    """A request as bytes; `changes` are headers with `_` for `-`, `None` for none."""
    lines = {"Host": "127.0.0.1", "Content-Length": str(len(body)), **headers}
    for name, value in changes.items():
        lines.pop(name.replace("_", "-"), None)
        if value is not None:
            lines[name.replace("_", "-")] = value
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {PATH} HTTP/1.1\r\n{head}\r\n".encode() + body
