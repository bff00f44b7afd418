"""The hostile client: it sends requests to all nodes, and notes each answer."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import orjson
from yarl import URL

from proof.chaos.fuzzers import NOISE
from proof.history import Recorder
from proof.hostile.requests import OPEN_PATHS, HostileRequest, RequestMaker, Route
from vox_mesh.hosts.mcp.profiles import Profile
from vox_mesh.http.api.api import OPERATIONS
from vox_mesh.http.api.openapi import document_of

PATIENCE_S: Final = 8.0
"""An answer that takes longer is not waited for: some requests wait, as they should."""

_AT_ONCE: Final = 10
_SHOWN: Final = 300
_READ: Final = 100_000
_LIVE: Final = "/livez"
_LIVE_EVERY_S: Final = 0.2
_LIVE_S: Final = 30.0
_PROBLEM: Final = "application/problem+json"
_JSON: Final = "application/json"
_MCP: Final = frozenset(profile.path for profile in Profile)
_RPC_FIELDS: Final = frozenset({"jsonrpc", "error"})
"""What MCP asks of refusals: errors of JSON-RPC."""

_QUERY_FAILED: Final = "bad_statement"
"""A statement of the mesh itself failed: no request holds SQL."""
_PROBLEM_FIELDS: Final = frozenset({"type", "title", "status", "code", "detail"})


class HostileClient:
    """Sends requests to one node after another until it is cancelled."""

    def __init__(
        self,
        urls: Mapping[str, str],
        routes: Sequence[Route],
        credential_of: Callable[[str], str | None],
        rng: random.Random,
        recorder: Recorder,
    ) -> None:
        self._urls = dict(urls)
        self._routes = routes
        self._credential_of = credential_of
        self._rng = rng
        self._recorder = recorder
        self._untried = {path for _, path in routes}
        self.has_tried_every_route = asyncio.Event()

    async def run(self) -> None:
        """Send requests for all routes, several at once."""
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            requests = RequestMaker(
                self._routes, document_of(OPERATIONS), list(self._urls), self._rng
            ).rounds()
            async with asyncio.TaskGroup() as group:
                for _ in range(_AT_ONCE):
                    group.create_task(self._send_all(session, requests))
                group.create_task(self._make_noise())

    def _authorization(self, credential: str) -> dict[str, str]:
        token = self._credential_of(credential)
        return {} if token is None else {"Authorization": f"Bearer {token}"}

    async def _send_all(self, session: aiohttp.ClientSession, requests: Iterator[HostileRequest]) -> None:
        for request in requests:
            node = self._rng.choice(list(self._urls))
            self._note_try(request.route)
            try:
                await self._send(session, node, request)
            except TimeoutError:
                self._note(node, request, 0, "no answer")
            except (aiohttp.ClientError, OSError, ValueError):
                self._note(node, request, 0, "hung up")
            await asyncio.sleep(0)

    async def _send(self, session: aiohttp.ClientSession, node: str, request: HostileRequest) -> None:
        headers = {**request.headers, **self._authorization(request.credential)}
        url = URL(self._urls[node] + request.target, encoded=True)
        async with session.request(request.method, url, data=request.body or None, headers=headers) as answer:
            if answer.status < 400:
                # A stream of events does not end by itself.
                self._note(node, request, answer.status, "")
                return
            body = await answer.content.read(_READ)
            self._note(node, request, answer.status, _fault(answer, request, body))

    def _note_try(self, route: str) -> None:
        if route in self._untried:
            self._untried.discard(route)
            self._recorder.note("hostile.tried", route=route)
        if not self._untried:
            self.has_tried_every_route.set()

    def _note(self, node: str, request: HostileRequest, status: int, fault: str) -> None:
        about: dict[str, Any] = {
            "node": node,
            "method": request.method,
            "route": request.route,
            "status": status,
        }
        about |= {"credential": request.credential, "flaw": request.flaw, "fault": fault}
        if status >= 500:
            about |= {"target": request.target[:_SHOWN], "body": repr(request.body[:_SHOWN])}
        self._recorder.note("hostile.answer", **about)

    async def _make_noise(self) -> None:
        """Send bytes that are no request."""
        while True:
            node = self._rng.choice(list(self._urls))
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                await _send_bytes(self._urls[node], self._rng.choice(NOISE))
            await asyncio.sleep(0.2)


async def watch_liveness(urls: Mapping[str, str], recorder: Recorder) -> None:
    """Measure how long each node takes to say that it lives, until cancelled."""
    timeout = aiohttp.ClientTimeout(total=_LIVE_S)
    loop = asyncio.get_running_loop()
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while True:
            for node, url in urls.items():
                began, status = loop.time(), 0
                with suppress(aiohttp.ClientError, OSError, TimeoutError):
                    async with session.get(url + _LIVE) as answer:
                        status = answer.status
                recorder.note("hostile.livez", node=node, status=status, seconds=loop.time() - began)
            await asyncio.sleep(_LIVE_EVERY_S)


def _fault(answer: aiohttp.ClientResponse, request: HostileRequest, body: bytes) -> str:
    """Return why a refusal is no problem document, or not one for the client; or nothing."""
    if request.method == "HEAD" or request.route in OPEN_PATHS:
        return ""
    is_rpc = request.route in _MCP and answer.content_type == _JSON
    if answer.content_type != _PROBLEM and not is_rpc:
        return f"content type {answer.content_type}"
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return "not JSON"
    if is_rpc:
        return "" if isinstance(document, dict) and document.keys() >= _RPC_FIELDS else "no error of JSON-RPC"
    if not isinstance(document, dict) or not document.keys() >= _PROBLEM_FIELDS:
        return "fields are missing"
    return f"a query failed: {document['detail'][:_SHOWN]}" if document["code"] == _QUERY_FAILED else ""


async def _send_bytes(url: str, noise: bytes) -> None:
    parts = urlsplit(url)
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, family=socket.AF_INET)
        try:
            writer.write(noise)
            await writer.drain()
            await reader.readline()
        finally:
            writer.transport.abort()
