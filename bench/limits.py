"""The raw limit of a figure: single inserts, on the storage of the backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from bench.measure import blocking_median_us, blocking_rate, median_us, rate
from bench.raw import raw_file, raw_socket
from tools.sqld import Server


class Limit(NamedTuple):
    """Single inserts, each sent when the one before was answered."""

    what: str
    per_second: Callable[[], Awaitable[float]]
    p50_ms: Callable[[], Awaitable[float]]


@asynccontextmanager
async def raw_limit(folder: Path, server: Server | None, seconds: float) -> AsyncIterator[Limit]:
    """That of a server, over one WebSocket; without one, that of a file in the folder, by bare `sqlite3`."""
    if server is not None:
        async with raw_socket(server) as socket:

            async def socket_ms() -> float:
                return await median_us(socket.insert, seconds) / 1e3

            yield Limit("a raw insert, WebSocket", lambda: rate(socket.insert, seconds), socket_ms)
        return
    with raw_file(str(folder / "raw.db")) as file:

        async def file_rate() -> float:
            return blocking_rate(file.insert, seconds)

        async def file_ms() -> float:
            return blocking_median_us(file.insert, seconds) / 1e3

        yield Limit("a raw sqlite3 insert", file_rate, file_ms)
