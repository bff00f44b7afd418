"""Processes that start at the same moment on a new database all succeed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.processes.conftest import StartWriter
from tests.support.running.jobs import Job
from tests.support.running.lengths import SOAK, in_soak
from tools.homes import FILE, MESH, HomeCase
from vox_mesh import open_store

_PROCESSES = 16 if SOAK else 8


@pytest.mark.soak
@pytest.mark.parametrize("case", [MESH, *in_soak(FILE)], ids=str)
async def test_many_processes_make_one_schema(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest, start_writer: StartWriter
) -> None:
    server = request.getfixturevalue("server") if case.needs_server else None
    settings = case.settings(tmp_path, server)
    writers = await asyncio.gather(*(start_writer(settings, Job("start")) for _ in range(_PROCESSES)))
    for writer in writers:
        await writer.until(bool)
    for writer in writers:
        writer.ask_to_stop()
    for writer in writers:
        assert (await writer.finish())[-1] == {"outcome": "applied"}
    async with await open_store(settings) as store:
        assert len(await store.read("SELECT version FROM mesh_schema")) == 1
