"""Fuzzing clients: they keep sending requests that nodes must reject."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import orjson

from proof.history import Recorder

MARK: Final = "a-stranger-was-here"
"""In everything they try to write: if it is found anywhere in the database, a request had an effect."""

_REST_S: Final = 0.08
_PATIENCE_S: Final = 2.0
_LARGE: Final = 2 * 2**20 + 1
_LOCK: Final = orjson.dumps({"keys": [MARK], "agent": MARK})
_JOB: Final = orjson.dumps({"manifests": [{"kind": MARK}]})
_MESSAGE: Final = orjson.dumps({"sender": MARK, "receiver": MARK, "payload": MARK})


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a fuzzing client."""

    name: str
    method: str = "POST"
    path: str = "/v1/locks"
    body: bytes = _LOCK
    has_token: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)


_FUZZED: Final = {"Authorization": "Bearer a-guess"}
REQUESTS: Final = (
    Request("lock without a token", has_token=False),
    Request("lock with a guess", has_token=False, headers=_FUZZED),
    Request("job with a guess", path="/v1/jobs", body=_JOB, has_token=False, headers=_FUZZED),
    Request("message with a guess", path="/v1/messages", body=_MESSAGE, has_token=False, headers=_FUZZED),
    Request("delivery with a guess", path="/v1/a2a/deliver", body=b"[]", has_token=False, headers=_FUZZED),
    Request("look without a token", method="GET", has_token=False),
    Request("half of a document", body=_LOCK[:-5]),
    Request("no document", body=b"\x00\xff" * 50),
    Request("a field too many", body=orjson.dumps({"keys": [MARK], "agent": MARK, "by": MARK})),
    Request("another type", body=orjson.dumps({"keys": MARK, "agent": 5})),
    Request("no keys", body=orjson.dumps({"keys": [], "agent": MARK})),
    Request("time before now", body=orjson.dumps({"keys": [MARK], "agent": MARK, "ttl": "-5s"})),
    Request("no job", path="/v1/jobs", body=orjson.dumps({"manifests": [{"kind": ""}]})),
    Request("too large", body=orjson.dumps({"keys": [MARK], "agent": "x" * _LARGE})),
    Request("another language", headers={"Content-Type": "application/xml"}),
    Request("packed", headers={"Content-Encoding": "gzip"}),
    Request("nowhere", path=f"/v1/{MARK}"),
    Request("another way", method="DELETE", path="/v1/nodes"),
    Request("no page", method="GET", path="/v1/locks?limit=many", body=b""),
)

NOISE: Final = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET /v1/locks HTTP/9.9\r\n\r\n",
    b"POST /v1/locks HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/locks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 70_000 + b"\r\n\r\n",
)
"""Bytes that are no request, or no permitted one."""


class FuzzingClients:
    """Send requests to one node after another, and note each response."""

    def __init__(
        self,
        urls: Mapping[str, str],
        token: str,
        rng: random.Random,
        recorder: Recorder,
        rest_s: float = _REST_S,
    ) -> None:
        self._urls = dict(urls)
        self._token = token
        self._rng = rng
        self._recorder = recorder
        self._rest_s = rest_s

    async def run(self) -> None:
        """Send all requests in random order, again and again, until cancelled."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_PATIENCE_S)) as client:
            while True:
                said: list[Request | bytes] = [*REQUESTS, *NOISE]
                self._rng.shuffle(said)
                for each in said:
                    node = self._rng.choice(list(self._urls))
                    # a node that is dead or paused does not respond
                    with suppress(aiohttp.ClientError, OSError, TimeoutError):
                        if isinstance(each, Request):
                            await self._send(client, node, each)
                        else:
                            await self._make_noise(node, each)
                    await asyncio.sleep(self._rest_s)

    async def _send(self, client: aiohttp.ClientSession, node: str, request: Request) -> None:
        headers = {"Content-Type": "application/json", **request.headers}
        if request.has_token:
            headers["Authorization"] = f"Bearer {self._token}"
        url = self._urls[node] + request.path
        async with client.request(request.method, url, data=BytesIO(request.body), headers=headers) as answer:
            self._note(node, request.name, answer.status)

    async def _make_noise(self, node: str, noise: bytes) -> None:
        parts = urlsplit(self._urls[node])
        async with asyncio.timeout(_PATIENCE_S):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                writer.write(noise)
                await writer.drain()
                line = await reader.readline()
            finally:
                writer.transport.abort()
        if line.startswith(b"HTTP/"):  # the node may hang up
            self._note(node, "noise", int(line.split()[1]))

    def _note(self, node: str, request: str, status: int) -> None:
        is_refused = 400 <= status < 500
        self._recorder.note("stranger.call", player=node, call=request, status=status, refused=is_refused)
