"""Faults of the server: each one lasts until the end of its block, and then the server is well again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from tools.sqld import Server

END_S: Final = 15.0
"""A server that does not stop in this time is killed: connections that are half open keep it waiting."""


@asynccontextmanager
async def killed(server: Server) -> AsyncIterator[None]:
    """`kill -9`; it is started again in the same place."""
    await asyncio.to_thread(server.kill)
    try:
        yield
    finally:
        await asyncio.to_thread(server.start)


@asynccontextmanager
async def stopped(server: Server) -> AsyncIterator[None]:
    """Stopped gracefully, and started again."""
    await asyncio.to_thread(server.end, END_S)
    try:
        yield
    finally:
        await asyncio.to_thread(server.start)


@asynccontextmanager
async def frozen(server: Server) -> AsyncIterator[None]:
    """Paused: connections stay open, and nothing responds."""
    await asyncio.to_thread(server.freeze)
    try:
        yield
    finally:
        server.thaw()
