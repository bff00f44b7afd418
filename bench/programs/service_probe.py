"""A well-behaved client: it times `/livez`, on a new connection each, and a lock that it takes and releases.

A signal is for how many seconds; it is answered with all times in milliseconds, and the number of failures.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from http import HTTPStatus
from time import perf_counter
from typing import Any, Final

import orjson

from bench.programs.http_wire import HttpWire
from vox_mesh import run

_PAUSE_S: Final = 0.005
_ACQUIRE: Final = orjson.dumps({"keys": ["task:probe"], "agent": "probe", "wait": "10s", "ttl": "30s"})


class ServiceProbe:
    """What a client sees of a service."""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._token = url, token
        self._failures = 0

    async def measure(self, seconds: float) -> dict[str, Any]:
        """Return the times of all requests in this many seconds."""
        self._failures = 0
        livez, lock = await asyncio.gather(
            self._repeat(self._livez, seconds), self._repeat(self._lock, seconds)
        )
        return {"livez": livez, "lock": lock, "failures": self._failures}

    async def _repeat(self, call: Any, seconds: float) -> list[float]:
        took: list[float] = []
        end = perf_counter() + seconds
        while (began := perf_counter()) < end:
            try:
                await call()
            except (OSError, EOFError, TimeoutError):
                self._failures += 1
            took.append((perf_counter() - began) * 1e3)
            await asyncio.sleep(_PAUSE_S)
        return took

    async def _livez(self) -> None:
        async with HttpWire.to_url(self._url, self._token) as wire:
            if (await wire.ask("GET", "/livez")).status != HTTPStatus.OK:
                raise ConnectionError

    async def _lock(self) -> None:
        async with HttpWire.to_url(self._url, self._token) as wire:
            granted = await wire.ask("POST", "/v1/locks", _ACQUIRE)
            if granted.status != HTTPStatus.CREATED:
                raise ConnectionError
            token = orjson.loads(granted.body)["fence_token"]
            given_back = orjson.dumps({"lock_key": "task:probe", "fence_token": token})
            if (await wire.ask("POST", "/v1/locks/release", given_back)).status != HTTPStatus.OK:
                raise ConnectionError


async def _serve(url: str, token: str) -> None:
    probe = ServiceProbe(url, token)
    print("ready", flush=True)
    while signal := await asyncio.to_thread(sys.stdin.readline):
        print(orjson.dumps(await probe.measure(float(signal))).decode(), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("token")
    arguments = parser.parse_args()
    run(_serve(arguments.url, arguments.token))
