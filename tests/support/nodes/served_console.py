"""A real node with a console whose time is set by the test, and browsers of it."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from typing import Any, Final

import httpx

from tests.support.messages.relaying import PATIENCE_S, TOKEN
from tests.support.nodes.serving import READ_TOKEN
from tests.support.nodes.shared_mesh import SharedMesh
from vox_mesh.http.access import Access
from vox_mesh.http.address import ListenAddress
from vox_mesh.http.api.api import Api
from vox_mesh.http.api.performer import Performer
from vox_mesh.http.console.authenticator import HEADER, SessionAuthenticator
from vox_mesh.http.console.endpoint import ConsoleEndpoint
from vox_mesh.http.console.peers import ConsolePeers
from vox_mesh.http.console.sessions import ConsoleSessions
from vox_mesh.http.events.stream import EventStream
from vox_mesh.http.limits import RefusalBrake
from vox_mesh.http.local_socket import LocalSocket
from vox_mesh.http.server import agents_of
from vox_mesh.http.service import Service
from vox_mesh.mesh import Mesh
from vox_mesh.node import MeshNode

_START_MS: Final = 1_700_000_000_000


class ConsoleBrowser:
    """A browser with the page of a console: it sends what a browser sends by itself."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self.client = client
        self.url = url
        self.secret: str | None = None

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str) -> AsyncIterator[ConsoleBrowser]:
        """A browser that has not signed in."""
        async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as client:
            yield cls(client, url)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a request of the page."""
        own = {"Sec-Fetch-Site": "same-origin", "Origin": self.url}
        return own if self.secret is None else own | {HEADER: self.secret}

    async def ask(self, method: str, path: str, body: Any = None, **headers: str | None) -> httpx.Response:
        """Send a request of the page, with other headers; `None` leaves one out."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {name: value for name, value in ({**self.headers, **named}).items() if value is not None}
        return await self.client.request(method, self.url + path, headers=sent, json=body)

    async def get(self, path: str) -> Any:
        """What a person reads."""
        answer = await self.ask("GET", path)
        assert answer.status_code == HTTPStatus.OK, answer.text
        return answer.json()

    async def sign_in(self, **how: Any) -> Any:
        """Sign in with a code, or a token and a name; the session."""
        answer = await self.ask("POST", "/ui/session", how)
        assert answer.status_code == HTTPStatus.OK, answer.text
        self.secret = answer.json()["secret"]
        return answer.json()["session"]


@dataclass
class ServedConsole:
    """A node with a console."""

    node: MeshNode
    url: str
    socket: Path
    sessions: ConsoleSessions
    endpoint: ConsoleEndpoint
    now_ms: int = _START_MS

    @asynccontextmanager
    async def signed_in(
        self, name: str = "alice", *, read_only: bool = False
    ) -> AsyncIterator[ConsoleBrowser]:
        """A browser whose person has signed in with a code of the node's user."""
        async with ConsoleBrowser.opened(self.url) as browser:
            await browser.sign_in(code=await self.code(name, read_only=read_only))
            yield browser

    async def code(self, name: str = "alice", *, read_only: bool = False) -> str:
        """A code for signing in."""
        answer = await self.ask_for_code({"name": name, "read_only": read_only})
        assert answer.status_code == HTTPStatus.OK, answer.text
        code: str = answer.json()["code"]
        return code

    async def ask_for_code(self, body: Any, **headers: str) -> httpx.Response:
        """Ask for a code as the node's user."""
        transport = httpx.AsyncHTTPTransport(uds=str(self.socket))
        async with httpx.AsyncClient(
            base_url="http://node", timeout=PATIENCE_S, transport=transport
        ) as client:
            return await client.post("/ui/codes", json=body, headers=headers)


@asynccontextmanager
async def serving_console(shared_mesh: SharedMesh, name: str = "ann") -> AsyncIterator[ServedConsole]:
    """A node of this mesh, with its API, its events and its console."""
    with tempfile.TemporaryDirectory() as folder:
        async with Mesh.open(shared_mesh.settings(name, http=False)) as node:
            served: ServedConsole
            sessions = ConsoleSessions(lambda: served.now_ms)
            authenticator, agents = SessionAuthenticator(sessions), agents_of(node)
            access = Access(TOKEN, READ_TOKEN, agents=agents, sessions=authenticator)
            peers = ConsolePeers(node, monotonic)
            console = ConsoleEndpoint(node, access, authenticator, peers, lambda: service.browser_url)
            events = EventStream(node, access)
            parts = [
                Api(Performer(node, access)).add_to,
                events.add_to,
                console.add_to,
                RefusalBrake().add_to,
            ]
            local = LocalSocket(Path(folder))
            service = Service(ListenAddress.from_settings(None, None, has_token=True), parts, local=local)
            try:
                url = await service.start()
                served = ServedConsole(node, url, local.path, sessions, console)
                yield served
            finally:
                events.end()
                await service.stop()
                await agents.refusals.close()
