"""Threads of frameworks: no worker writes to them for its successor, and stored bytes call nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.frameworks.loading import load, needs
from tests.support.messages.messaging import PATIENCE_S
from vox_mesh import JobContext, Script, Statement
from vox_mesh.errors import Refused
from vox_mesh.node import MeshNode

pytestmark = needs("langgraph", "langgraph")


@pytest.fixture
def graphs() -> Any:
    """The module with the graphs, which loads LangGraph."""
    return load("tests.support.frameworks.langgraph_threads")


async def test_a_worker_that_has_lost_its_claim_writes_to_no_thread(owner: MeshNode, graphs: Any) -> None:
    reasons: list[str] = []

    @owner.worker.handles("graph")
    async def run(context: JobContext) -> None:
        saver = graphs.MeshCheckpointSaver(owner, fence=context.fence)
        checkpoint_id = await graphs.put(saver, "t", "mine")
        await owner.jobs.abort(context.job.job_id)
        for write in (
            graphs.put(saver, "t", "late", checkpoint_id),
            saver.aput_writes(graphs.thread("t", checkpoint_id), [("c", 1)], "task"),
            saver.adelete_thread("t"),
        ):
            try:
                await write
            except Refused as refused:
                reasons.append(refused.reason)

    async with owner.worker.running():
        job = await owner.jobs.schedule("graph")
        assert (await owner.jobs.wait(job, timeout=PATIENCE_S)).state == "aborted"
    assert reasons == ["stale_claim"] * 3
    assert await graphs.listed(graphs.MeshCheckpointSaver(owner), None) == ["mine"]


async def test_stored_bytes_that_name_a_function_do_not_call_it(
    owner: MeshNode, graphs: Any, tmp_path: Path
) -> None:
    saver = graphs.MeshCheckpointSaver(owner)
    await graphs.put(saver, "t", 1)
    msgpack, made = load("ormsgpack"), tmp_path / "made"
    planted = msgpack.packb(msgpack.Ext(0, msgpack.packb(("os", "mkdir", str(made)))))
    await owner.store.write(Script(Statement("UPDATE graph_checkpoints SET checkpoint = ?", (planted,))))
    assert (await saver.aget_tuple(graphs.thread("t"))).checkpoint == str(made)
    assert not made.exists()
