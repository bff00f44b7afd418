"""Fixtures: the same nodes as for jobs; `kept` ones wake suspended jobs, and clean up after aborted ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.jobs.conftest import local, named, node, there
from vox_mesh.node import MeshNode
from vox_mesh.testing import MeshHarness

__all__ = ["local", "named", "node", "there"]


@asynccontextmanager
async def _maintained(node: MeshNode) -> AsyncIterator[MeshNode]:
    task = asyncio.create_task(node._job_maintenance.run())
    yield node
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.fixture
async def kept(local: MeshNode) -> AsyncIterator[MeshNode]:
    """`local`, with its maintenance of jobs."""
    async with _maintained(local):
        yield local


@pytest.fixture
async def kept_node(node: MeshNode) -> AsyncIterator[MeshNode]:
    """`node`, with its maintenance of jobs."""
    async with _maintained(node):
        yield node


@pytest.fixture
async def harness() -> AsyncIterator[MeshHarness]:
    async with MeshHarness() as harness:
        yield harness
