"""A client with a read-only token that uses every endpoint it may use, as hard as it can.

The endpoints come from the service's own table of operations. Signals: `start` and `stop`; each is answered
with the count of the answers so far, by status.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote, urlencode

import orjson

from bench.programs.http_wire import HttpWire
from vox_mesh import run
from vox_mesh.http.access import Scope
from vox_mesh.http.api.api import OPERATIONS
from vox_mesh.http.api.operations import Operation
from vox_mesh.http.api.performer import DOCUMENT

Request = tuple[str, str, bytes]

CONNECTIONS: Final = 400
_STREAM_S: Final = 2.0
_UNREAD_S: Final = 2.0
_UNREAD_SHARE: Final = 0.05
_NASTY: Final = "*" + "?a" * 240 + "b*"
_PATHS: Final = [f"{'a' * 900}/{n}" for n in range(1_000)]
_WORST: Final[dict[str, Any]] = {
    "limit": 500,
    "all": "true",
    "timeout": "60s",
    "wait": "60s",
    "kind": "no.such.*",
    "key": f"file:{_NASTY}",
    "address": "ucxl://any:any@any:any/;beats=^^1",
    "since": "365d",
}
"""The worst value of a parameter that is known to have one."""

_STREAMS: Final = ("/v1/events?after=0",)
_OTHERS: Final = ("/metrics", "/readyz?verbose", DOCUMENT)


async def _names(wire: HttpWire) -> dict[str, str]:
    """Return a name of each sort of thing that exists."""
    found: dict[str, str] = {"agent": "bench", "name": "none", "conflict_id": "none"}
    for name, path, key in (
        ("job", "/v1/jobs?limit=1", "job_id"),
        ("node_id", "/v1/nodes?limit=1", "node_id"),
        ("op_id", "/v1/oplog?limit=1", "op_id"),
        ("message_uuid", "/v1/messages?limit=1", "message_uuid"),
    ):
        items = orjson.loads((await wire.ask("GET", path)).body)["items"]
        found[name] = items[0][key] if items else "none"
    return found


def _requests(names: dict[str, str]) -> Iterator[Request]:
    """Yield requests of all operations that read: as they are, and with the worst of each parameter."""
    for operation in OPERATIONS:
        if operation.scope is not Scope.READ:
            continue
        path = operation.path.format_map({name: quote(names.get(name, "none")) for name in operation.names})
        if operation.body is not None:
            yield operation.method, path, orjson.dumps({"paths": _PATHS, "agent": "hostile"})
            continue
        for query in _queries(operation):
            yield operation.method, f"{path}?{urlencode(query)}" if query else path, b""
    for path in _OTHERS:
        yield "GET", path, b""


def _queries(operation: Operation) -> Iterator[dict[str, Any]]:
    fields = operation.query.model_fields if operation.query is not None else {}
    largest = {name: _WORST[name] for name in fields if name in ("limit", "all")}
    yield largest
    for name in fields:
        if name in _WORST and name not in largest:
            yield largest | {name: _WORST[name]}


class HostileReader:
    """Many connections that send one request after another."""

    def __init__(self, url: str, token: str, requests: list[Request]) -> None:
        self._url, self._token, self._requests = url, token, requests
        self._tasks: list[asyncio.Task[None]] = []
        self.answers: Counter[str] = Counter()

    def start(self, connections: int) -> None:
        """Begin on all connections."""
        self._tasks = [asyncio.create_task(self._connect(random.Random(n))) for n in range(connections)]

    async def stop(self) -> None:
        """End on all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self, rng: random.Random) -> None:
        while True:
            try:
                async with HttpWire.to_url(self._url, self._token) as wire:
                    await self._use(wire, rng)
            except (OSError, EOFError, TimeoutError) as error:
                self.answers[type(error).__name__] += 1
                await asyncio.sleep(0.01)

    async def _use(self, wire: HttpWire, rng: random.Random) -> None:
        if rng.randrange(20) == 0:
            wire.send("GET", rng.choice(_STREAMS))
            return await wire.listen(_STREAM_S)
        while rng.random() > _UNREAD_SHARE:
            answer = await wire.ask(*rng.choice(self._requests))
            self.answers[str(answer.status)] += 1
        wire.send(*rng.choice(self._requests))
        return await asyncio.sleep(_UNREAD_S)


async def _serve(url: str, token: str, connections: int, only: str) -> None:
    async with HttpWire.to_url(url, token) as wire:
        requests = [each for each in _requests(await _names(wire)) if only in each[1]]
    reader = HostileReader(url, token, requests)
    print("ready", flush=True)
    while signal := await asyncio.to_thread(sys.stdin.readline):
        if signal.strip() == "start":
            reader.start(connections)
        else:
            await reader.stop()
        print(orjson.dumps(reader.answers).decode(), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("token")
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--only", default="", help="only paths that hold this")
    arguments = parser.parse_args()
    run(_serve(arguments.url, arguments.token, arguments.connections, arguments.only))
