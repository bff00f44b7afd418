"""Fixtures: processes that write, and nothing left of them afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.running.jobs import Job
from tests.support.running.processes import Writer
from vox_mesh import Settings

StartWriter = Callable[[Settings, Job], Awaitable[Writer]]


@pytest.fixture
async def start_writer(tmp_path: Path) -> AsyncIterator[StartWriter]:
    """Start a writer; whatever becomes of the test, it is gone at the end."""
    writers: list[Writer] = []

    async def start(settings: Settings, job: Job) -> Writer:
        writer = await Writer.start(settings, job, tmp_path / f"writer-{len(writers)}.log")
        writers.append(writer)
        return writer

    yield start
    await asyncio.gather(*(writer.kill() for writer in writers))


@pytest.fixture
async def start_author(tmp_path: Path) -> AsyncIterator[StartWriter]:
    """Start a node that authors ops; whatever becomes of the test, it is gone at the end."""
    authors: list[Writer] = []

    async def start(settings: Settings, job: Job) -> Writer:
        log = tmp_path / f"author-{len(authors)}.log"
        author = await Writer.start(settings, job, log, "tests.support.oplog.authors")
        authors.append(author)
        return author

    yield start
    await asyncio.gather(*(author.kill() for author in authors))
