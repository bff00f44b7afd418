"""A real node whose API is served, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import httpx
import orjson

from tests.support.messages.relaying import PATIENCE_S, TOKEN
from tests.support.nodes.shared_mesh import SharedMesh
from vox_mesh.http.access import Access
from vox_mesh.http.address import ListenAddress
from vox_mesh.http.api.api import Api
from vox_mesh.http.api.performer import Performer
from vox_mesh.http.server import agents_of
from vox_mesh.http.service import Service
from vox_mesh.mesh import Mesh
from vox_mesh.node import MeshNode

READ_TOKEN: Final = "a-token-for-those-who-only-look"


@dataclass
class ServedNode:
    """A node, and who asks it over HTTP."""

    node: MeshNode
    client: httpx.AsyncClient
    shared_mesh: SharedMesh

    async def ask(
        self, method: str, path: str, body: Any = None, *, token: str | None = TOKEN, **more: Any
    ) -> httpx.Response:
        """Ask; a body goes as JSON."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
            more["content"] = orjson.dumps(body)
        return await self.client.request(method, path, headers=headers | more.pop("headers", {}), **more)

    async def get(self, path: str, **query: Any) -> Any:
        """What is answered to a question."""
        return _document(await self.ask("GET", path, params=query))

    async def post(self, path: str, body: Any = None) -> Any:
        """The answer to a report."""
        return _document(await self.ask("POST", path, body))

    async def all(self, path: str, **query: Any) -> list[Any]:
        """The items of all pages."""
        items: list[Any] = []
        cursor: dict[str, str] = {}
        while True:
            page = await self.get(path, **(query | cursor))
            items += page["items"]
            if page["next"] is None:
                return items
            cursor = {"cursor": page["next"]}


def _document(answer: httpx.Response) -> Any:
    assert answer.status_code == HTTPStatus.OK, answer.text
    assert answer.headers["Content-Type"] == "application/json"
    return answer.json()


@asynccontextmanager
async def serving_api(shared_mesh: SharedMesh, name: str = "ann", **more: Any) -> AsyncIterator[ServedNode]:
    """A node of this mesh, with its API and nothing else."""
    async with Mesh.open(shared_mesh.settings(name, http=False, **more)) as node:
        agents = agents_of(node)
        api = Api(Performer(node, Access(TOKEN, READ_TOKEN, agents=agents)))
        service = Service(ListenAddress.from_settings(None, None, has_token=True), [api.add_to])
        try:
            url = await service.start()
            async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, trust_env=False) as client:
                yield ServedNode(node, client, shared_mesh)
        finally:
            await service.stop()
            await agents.refusals.close()
