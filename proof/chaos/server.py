"""What can befall the server of a run: each of these lasts until it is left, and then all is well again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from tools.sqld import Server

END_S: Final = 15.0
"""A server that does not end in this time is killed: connections that are held half open keep it waiting."""


@asynccontextmanager
async def killed(server: Server) -> AsyncIterator[None]:
    """`kill -9`; it is started again where it was."""
    await asyncio.to_thread(server.kill)
    try:
        yield
    finally:
        await asyncio.to_thread(server.start)


@asynccontextmanager
async def stopped(server: Server) -> AsyncIterator[None]:
    """Ended in good order, and started again."""
    await asyncio.to_thread(server.end, END_S)
    try:
        yield
    finally:
        await asyncio.to_thread(server.start)


@asynccontextmanager
async def frozen(server: Server) -> AsyncIterator[None]:
    """Stopped in its tracks: connections stay open, and nothing answers."""
    await asyncio.to_thread(server.freeze)
    try:
        yield
    finally:
        server.thaw()
