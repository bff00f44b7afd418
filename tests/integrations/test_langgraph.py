"""LangGraph: threads of graphs are kept in the mesh, and go on wherever a node is."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.frameworks.loading import load, needs
from tests.support.messages.messaging import PATIENCE_S, NodeGroup
from vox_mesh import Mesh, load_settings
from vox_mesh.errors import BadValue, WrongThread
from vox_mesh.node import MeshNode
from vox_mesh.sync import Mesh as SyncMesh
from vox_mesh.testing import MeshHarness

pytestmark = needs("langgraph", "langgraph")

_TESTS: Final = 81
_TABLES: Final = ("conversations", "graph_checkpoints", "graph_writes")


@pytest.fixture
def graphs() -> Any:
    """The module with the graphs, which loads LangGraph."""
    return load("tests.support.frameworks.langgraph_threads")


async def rows(node: MeshNode, table: str) -> int:
    """Count the rows of a table."""
    sql = f"SELECT count(*) FROM {table} WHERE scope_id = ?1 AND repository_id = ?2"
    count: int = (await node.store.read(sql, node.store.mesh_id, fresh=True)).value
    return count


async def test_the_conformance_suite_passes(any_node: MeshNode, graphs: Any) -> None:
    report = (await graphs.conformance(any_node)).to_dict()
    found = report["results"].values()
    assert [failure for each in found for failure in each["failures"]] == []
    assert sum(each["tests_passed"] for each in found) == _TESTS
    assert report["conformance_level"] == "FULL"


# --- threads -----------------------------------------------------------------------------------------


async def test_another_node_goes_on_with_a_thread_where_it_was_interrupted(
    crowd: NodeGroup, graphs: Any
) -> None:
    done: list[str] = []
    first, second = await crowd.node("first"), await crowd.node("second")
    graph = graphs.approval_graph(graphs.MeshCheckpointSaver(first), done.append)
    state = await graph.ainvoke({"topic": "bees", "notes": []}, graphs.thread("t"))
    assert state["__interrupt__"][0].value == {"question": "publish?"}

    graph = graphs.approval_graph(graphs.MeshCheckpointSaver(second), done.append)
    state = await graph.ainvoke(graphs.Command(resume="ada"), graphs.thread("t"))
    assert state["notes"] == ["draft on bees", "approved by ada", "published"]
    assert done == ["draft", "approve", "publish"]
    steps = [each.metadata["step"] async for each in graph.aget_state_history(graphs.thread("t"))]
    assert steps == [3, 2, 1, 0, -1]


async def test_threads_of_two_meshes_are_apart(tmp_path: Path, graphs: Any) -> None:
    settings = load_settings(_env_file=None, enabled=True, http=False, home_dir=tmp_path / "vox")
    other = settings.model_copy(update={"repository_id": "other"})
    async with Mesh.open(settings) as one, Mesh.open(other) as two:
        await graphs.put(graphs.MeshCheckpointSaver(one), "t", 1)
        assert await graphs.MeshCheckpointSaver(two).aget_tuple(graphs.thread("t")) is None
        assert await graphs.listed(graphs.MeshCheckpointSaver(two), None) == []


async def test_checkpoints_are_listed_over_several_pages(local: MeshNode, graphs: Any) -> None:
    saver = graphs.MeshCheckpointSaver(local)
    parent, made = None, []
    for number in range(120):
        parent = await graphs.put(saver, "t", number, parent, step=number)
        made.append(parent)
    await graphs.put(saver, "u", "other")
    assert await graphs.listed(saver, graphs.thread("t")) == [*reversed(range(120))]
    assert await graphs.listed(saver, None) == ["other", *reversed(range(120))]
    assert await graphs.listed(saver, graphs.thread("t"), filter={"step": 3}) == [3]
    before = graphs.thread("t", made[5])
    assert await graphs.listed(saver, graphs.thread("t"), before=before, limit=2) == [4, 3]
    assert await graphs.listed(saver, graphs.thread("t", made[7])) == [7]


async def test_many_writes_since_a_checkpoint_are_all_read(local: MeshNode, graphs: Any) -> None:
    saver = graphs.MeshCheckpointSaver(local)
    config = graphs.thread("t", await graphs.put(saver, "t", 1))
    for task in range(3):
        await saver.aput_writes(config, [("c", number) for number in range(250)], f"task {task}")
    found = await saver.aget_tuple(config)
    assert [each[2] for each in found.pending_writes] == [*range(250)] * 3


# --- other loops and threads -------------------------------------------------------------------------


async def test_blocking_calls_work_in_a_thread_and_not_in_that_of_the_loop(
    local: MeshNode, graphs: Any
) -> None:
    saver = graphs.MeshCheckpointSaver(local)
    graph = graphs.approval_graph(saver, lambda _: None)
    state = await asyncio.to_thread(graph.invoke, {"topic": "ants", "notes": []}, graphs.thread("t"))
    assert state["notes"] == ["draft on ants"]

    def other_loop() -> Any:
        return asyncio.run(graph.ainvoke(graphs.Command(resume="bob"), graphs.thread("t")))

    state = await asyncio.to_thread(other_loop)
    assert state["notes"][1:] == ["approved by bob", "published"]
    assert len(await asyncio.to_thread(lambda: [*graph.get_state_history(graphs.thread("t"))])) == 5
    with pytest.raises(WrongThread, match="it would stop the loop"):
        saver.get_tuple(graphs.thread("t"))


def test_a_blocking_mesh_keeps_threads_too(tmp_path: Path, graphs: Any) -> None:
    settings = load_settings(_env_file=None, enabled=True, http=False, home_dir=tmp_path / "vox")
    with SyncMesh.open(settings) as mesh:
        saver = graphs.MeshCheckpointSaver(mesh)
        graph = graphs.approval_graph(saver, lambda _: None)
        graph.invoke({"topic": "wasps", "notes": []}, graphs.thread("t"))
        state = asyncio.run(graph.ainvoke(graphs.Command(resume="eve"), graphs.thread("t")))
        assert state["notes"][-1] == "published"
        saver.copy_thread("t", "u")
        saver.prune(["t"])
        saver.delete_for_runs(["none"])
        assert [len([*saver.list(graphs.thread(name))]) for name in "tu"] == [1, 5]
        saver.delete_thread("u")
        assert saver.get_tuple(graphs.thread("u")) is None


def test_a_saver_is_made_where_its_mesh_runs(tmp_path: Path, graphs: Any) -> None:
    async def open_mesh() -> Any:
        settings = load_settings(_env_file=None, enabled=False)
        async with Mesh.open(settings) as mesh:
            failed: list[BaseException] = []

            def create() -> None:
                try:
                    graphs.MeshCheckpointSaver(mesh)
                except WrongThread as error:
                    failed.append(error)

            thread = threading.Thread(target=create)
            thread.start()
            await asyncio.to_thread(thread.join, PATIENCE_S)
            return failed

    assert [each.hint for each in asyncio.run(open_mesh())] == [
        "create it inside `async with Mesh.open():`, or pass a mesh of `vox_mesh.sync`"
    ]


# --- the end of threads ------------------------------------------------------------------------------


async def test_a_thread_expires_after_its_last_write_and_begins_anew(
    harness: MeshHarness, graphs: Any
) -> None:
    node = await harness.node()
    saver = graphs.MeshCheckpointSaver(node, ttl="10d")
    await saver.aput_writes(graphs.thread("t", await graphs.put(saver, "t", 1)), [("c", 1)], "task")
    await graphs.put(graphs.MeshCheckpointSaver(node, ttl=None), "u", 1)
    await harness.clock.advance("9d")
    await graphs.put(saver, "t", 2)
    await harness.clock.advance("9d")
    assert await graphs.listed(saver, graphs.thread("t")) == [2, 1]
    await harness.clock.advance("2d")
    assert await saver.aget_tuple(graphs.thread("t")) is None
    assert await graphs.listed(saver, None) == [1]
    await graphs.put(saver, "t", 3)
    assert await graphs.listed(saver, graphs.thread("t")) == [3]
    assert await rows(node, "graph_writes") == 0
    await harness.clock.advance("11d")
    await node.retention.prune_all()
    assert [await rows(node, table) for table in _TABLES] == [1, 1, 0]
    assert await graphs.listed(saver, graphs.thread("u")) == [1]


async def test_a_removed_thread_is_gone_even_if_its_rows_are_left(local: MeshNode, graphs: Any) -> None:
    saver = graphs.MeshCheckpointSaver(local)
    for number in range(3):
        checkpoint_id = await graphs.put(saver, "t", number)
        await saver.aput_writes(graphs.thread("t", checkpoint_id), [("c", 1)], "task")
    remove, saver._remove = saver._remove, _stop
    with pytest.raises(KeyboardInterrupt):
        await saver.adelete_thread("t")
    assert await saver.aget_tuple(graphs.thread("t")) is None
    assert await rows(local, "graph_checkpoints") == 3
    saver._remove = remove
    await saver.aprune(["t"], strategy="delete")
    assert [await rows(local, table) for table in _TABLES] == [0, 0, 0]


async def _stop(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


async def test_more_checkpoints_are_removed_than_in_one_write(local: MeshNode, graphs: Any) -> None:
    saver = graphs.MeshCheckpointSaver(local)
    await asyncio.gather(*(graphs.put(saver, "t", number, run_id="r") for number in range(450)))
    await saver.aprune(["t"])
    assert await rows(local, "graph_checkpoints") == 1
    await asyncio.gather(*(graphs.put(saver, "t", number, run_id="r") for number in range(220)))
    await saver.adelete_for_runs(["r", "other"])
    assert await rows(local, "graph_checkpoints") == 0


async def test_what_deltas_need_is_not_pruned(local: MeshNode, graphs: Any) -> None:
    saver = graphs.MeshCheckpointSaver(local)
    for number in range(3):
        await graphs.put(saver, "t", number, counters_since_delta_snapshot={"notes": (number, number)})
        await graphs.put(saver, "u", number, counters_since_delta_snapshot={})
    await saver.aprune(["t", "u"])
    assert await graphs.listed(saver, graphs.thread("t")) == [2, 1, 0]
    assert await graphs.listed(saver, graphs.thread("u")) == [2]


# --- limits ------------------------------------------------------------------------------------------


async def test_what_is_too_large_is_refused_with_what_to_do(local: MeshNode, graphs: Any) -> None:
    saver = graphs.MeshCheckpointSaver(local)
    with pytest.raises(BadValue, match="a checkpoint must be at most 6291456 bytes") as refused:
        await graphs.put(saver, "t", b"x" * (6 * 2**20))
    assert refused.value.hint == "store large values as artifacts, and keep their hashes in the state"
    with pytest.raises(BadValue, match="metadata of a checkpoint must be at most 65536 bytes"):
        await graphs.put(saver, "t", 1, note="x" * 70_000)
    with pytest.raises(BadValue, match="thread_id must have at most 2048 characters"):
        await graphs.put(saver, "t" * 3_000, 1)
    with pytest.raises(BadValue, match="strategy must be one of keep_latest, delete"):
        await saver.aprune(["t"], strategy="newest")
    assert await rows(local, "conversations") == 0
