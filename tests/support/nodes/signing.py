"""Agents that sign their requests to a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import randbits
from typing import Any, Final

import httpx
import orjson
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.nodes.serving import ServedNode
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.base.ulid import encode, milliseconds_of
from vox_mesh.model.principals.request_signature import Audience, sign_request
from vox_mesh.node import MeshNode
from vox_mesh.store.script import new_key

_CHANCE_BITS: Final = 80


def audience_of(node: MeshNode) -> Audience:
    """The node, as requests are signed for it."""
    scope_id, repository_id, _ = node.store.writer_id
    return Audience(scope_id, repository_id, node.identity.node_id)


@dataclass
class SigningAgent:
    """An agent with a key, and the node that it asks."""

    name: str
    client: httpx.AsyncClient
    audience: Audience
    key: SigningKey = field(default_factory=lambda: SigningKey(Ed25519PrivateKey.generate()))
    from_ms: int = 0
    """The least time of its signatures."""

    def signed(self, method: str, path: str, body: Any = None, *, later_ms: int = 0) -> httpx.Request:
        """A signed request; `later_ms` shifts its time."""
        content = b"" if body is None else orjson.dumps(body)
        time_ms = max(milliseconds_of(new_key()), self.from_ms)
        nonce = encode(time_ms + later_ms, randbits(_CHANCE_BITS))
        request = self.client.build_request(method, path, content=content or None)
        target = request.url.raw_path.decode()
        headers = sign_request(self.key, self.name, self.audience, method, target, content, nonce)
        if body is not None:
            headers["Content-Type"] = "application/json"
        request.headers.update(headers)
        return request

    async def ask(self, method: str, path: str, body: Any = None, **more: str) -> httpx.Response:
        """Send a signed request, with more headers."""
        for _ in range(2):
            request = self.signed(method, path, body)
            request.headers.update(more)
            answer = await self.client.send(request)
            if answer.status_code != 401 or "from_ms" not in answer.json():
                break
            self.from_ms = answer.json()["from_ms"]  # the node has just started
        return answer

    async def bearer(self) -> str:
        """A bearer of the current bar."""
        answer = await self.ask("POST", f"/v1/agents/{self.name}/bearer")
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["bearer"]
        return text

    async def ask_by(self, bearer: str, method: str, path: str, body: Any = None) -> httpx.Response:
        """Send a request with a bearer or a token."""
        headers = {"Authorization": f"Bearer {bearer}"}
        return await self.client.request(method, path, headers=headers, json=body)


async def admitted(served: ServedNode, name: str, lines: Sequence[str]) -> SigningAgent:
    """An agent that the owner has admitted, with a grant of these capabilities; the node knows it."""
    node = served.node
    agent = SigningAgent(name, served.client, audience_of(node))
    await node.grants.admit(name, agent.key.public)
    await node.grants.issue(name, lines)
    node.principals.known._reading.expire()  # it is remembered for a second
    await node.principals.known.refresh()
    return agent
