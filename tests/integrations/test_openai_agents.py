"""OpenAI Agents SDK: sessions are kept in the mesh, and a run waits for an approval without a worker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.frameworks.loading import load, needs
from tests.support.messages.messaging import PATIENCE_S, NodeGroup
from vox_mesh import JobContext, load_settings
from vox_mesh.errors import BadValue, Refused
from vox_mesh.node import MeshNode
from vox_mesh.sync import Mesh as SyncMesh
from vox_mesh.testing import MeshHarness

pytestmark = needs("agents", "openai-agents")


@pytest.fixture
def sdk() -> Any:
    """The module with the agents, which loads the SDK."""
    return load("tests.support.frameworks.agent_sessions")


async def test_another_node_goes_on_with_a_conversation(crowd: NodeGroup, sdk: Any) -> None:
    agent = sdk.answering("hello", "you said: I am Ada")
    for name, text in (("first", "I am Ada"), ("second", "who am I?")):
        session = sdk.MeshSession(await crowd.node(name), "ada")
        answer = (await sdk.Runner.run(agent, text, session=session)).final_output
    assert answer == "you said: I am Ada"
    asked = agent.model.calls[1].input
    assert [each.get("content") for each in asked if each.get("role") == "user"] == ["I am Ada", "who am I?"]
    assert len(await session.get_items()) == 4


async def test_items_are_added_read_and_removed_in_order(any_node: MeshNode, sdk: Any) -> None:
    session, other = sdk.MeshSession(any_node, "s"), sdk.MeshSession(any_node, "other")
    await session.add_items([])
    assert await session.pop_item() is None
    await session.add_items([sdk.item(number) for number in range(600)])
    await other.add_items([sdk.item(7)])
    await session.add_items([{"text": 'a "quoted" \0 \ud83d line\n', "number": 1.5}])
    assert await session.pop_item() == {"text": 'a "quoted" \0 \ud83d line\n', "number": 1.5}
    assert await session.get_items() == [sdk.item(number) for number in range(600)]
    assert await session.get_items(limit=2) == [sdk.item(598), sdk.item(599)]
    assert await session.get_items(limit=0) == []
    limited = sdk.MeshSession(any_node, "s", session_settings=type(session.session_settings)(limit=1))
    assert await limited.get_items() == [sdk.item(599)]
    await session.clear_session()
    assert await session.get_items() == []
    assert await other.get_items() == [sdk.item(7)]
    await session.add_items([sdk.item(1)])
    assert await session.get_items() == [sdk.item(1)]


async def test_each_of_several_gets_another_last_item(local: MeshNode, sdk: Any) -> None:
    session, late = sdk.MeshSession(local, "s"), sdk.MeshSession(local, "s")
    await session.add_items([sdk.item(number) for number in range(9)])
    read, popped = late._read, list[Any]()

    async def read_before_another(limit: int) -> Any:
        rows = await read(limit)
        if not popped:
            popped.append(await session.pop_item())
        return rows

    late._read = read_before_another
    popped.append(await late.pop_item())
    popped += await asyncio.gather(*(session.pop_item() for _ in range(4)))
    assert sorted(each["content"] for each in popped) == [f"message {number}" for number in range(3, 9)]
    assert len(await session.get_items()) == 3


async def test_a_session_expires_after_its_last_write(harness: MeshHarness, sdk: Any) -> None:
    node = await harness.node()
    session, kept = sdk.MeshSession(node, "s", ttl="10d"), sdk.MeshSession(node, "kept", ttl=None)
    for each in (session, kept):
        await each.add_items([sdk.item(1)])
    await harness.clock.advance("9d")
    await session.add_items([sdk.item(2)])
    await harness.clock.advance("9d")
    assert len(await session.get_items()) == 2
    await harness.clock.advance("2d")
    assert await session.get_items() == []
    await session.add_items([sdk.item(3)])
    assert await session.get_items() == [sdk.item(3)]
    await harness.clock.advance("11d")
    await node.retention.prune_all()
    rows = await node.store.read("SELECT DISTINCT session_id FROM session_items", fresh=True)
    assert [row[0] for row in rows] == ["kept"]
    rows = await node.store.read("SELECT name FROM conversations", fresh=True)
    assert [row[0] for row in rows] == ["kept"]


def test_a_blocking_mesh_keeps_sessions_too(tmp_path: Path, sdk: Any) -> None:
    settings = load_settings(_env_file=None, enabled=True, http=False, home_dir=tmp_path / "vox")
    with SyncMesh.open(settings) as mesh:
        session = sdk.MeshSession(mesh, "ada")
        with asyncio.Runner() as runner:
            asyncio.set_event_loop(runner.get_loop())  # else the SDK makes one, which it leaves open
            assert sdk.Runner.run_sync(sdk.answering("hi"), "hello", session=session).final_output == "hi"
        assert len(asyncio.run(session.get_items())) == 2


async def test_a_job_waits_for_an_approval_without_a_worker(local: MeshNode, sdk: Any) -> None:
    published: list[str] = []

    async def begin() -> dict[str, Any]:
        agent = sdk.publisher(published.append, is_resumed=False)
        state: dict[str, Any] = (await sdk.Runner.run(agent, "publish")).to_state().to_json()
        return state

    async def finish(stored: dict[str, Any], is_approved: bool) -> str:
        agent = sdk.publisher(published.append, is_resumed=True)
        state = await sdk.RunState.from_json(agent, stored)
        for interruption in state.get_interruptions():
            (state.approve if is_approved else state.reject)(interruption)
        return str((await sdk.Runner.run(agent, state)).final_output)

    @local.worker.handles("publish")
    async def publish(context: JobContext) -> str:
        state = await context.step("begin", begin)
        answer = await context.ask("publish the report on bees?")
        done: str = await context.step("finish", finish, state, answer == "yes")
        return done

    async with local.worker.running():
        job = await local.jobs.schedule("publish")
        async with asyncio.timeout(PATIENCE_S):
            async for _ in local.store.changes():
                if await local.jobs.questions.open():
                    break
        assert published == []
        await local.jobs.questions.answer(await local.jobs.find(job.job_id), "yes")
        assert await local.jobs.result(job, timeout=PATIENCE_S) == "it is out"
    assert published == ["bees"]


async def test_what_does_not_fit_is_refused_and_late_writes_too(local: MeshNode, sdk: Any) -> None:
    for session_id in ("", "s" * 3_000):
        with pytest.raises(BadValue, match="session_id must have 1 to 2048 characters"):
            sdk.MeshSession(local, session_id)
    session = sdk.MeshSession(local, "s")
    with pytest.raises(BadValue, match="an item must be at most 6291456 bytes"):
        await session.add_items([{"content": "x" * 7_000_000}])
    await session.add_items([sdk.item(1)])

    @local.worker.handles("late")
    async def late(context: JobContext) -> list[str]:
        await local.jobs.abort(context.job.job_id)
        session = sdk.MeshSession(local, "s", fence=context.fence)
        for write in (session.add_items([sdk.item(2)]), session.pop_item(), session.clear_session()):
            with pytest.raises(Refused, match="stale_claim"):
                await write
        finished.set()
        return []

    finished = asyncio.Event()
    async with local.worker.running():
        await local.jobs.schedule("late")
        async with asyncio.timeout(PATIENCE_S):
            await finished.wait()
    assert await session.get_items() == [sdk.item(1)]
