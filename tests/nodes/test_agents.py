"""Agents: which are alive, where, and what they hold, run and wait for."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import orjson
import pytest

from tests.support.nodes.clocks import Clock
from tests.support.nodes.shared_mesh import SharedMesh
from vox_mesh import Mesh
from vox_mesh.errors import LockHeld, NotKnown
from vox_mesh.jobs.work.reports import succeeded
from vox_mesh.model.nodes.agent_state import ALIVE_MS, QUIET_MS, AgentState, agent_state
from vox_mesh.node import MeshNode
from vox_mesh.nodes.agents import MAX_LISTED
from vox_mesh.nodes.sightings import ATTACHED_INTERVAL_S, WRITE_INTERVAL_S, Sightings
from vox_mesh.store.script import Script, Statement

_AGE: Final = "UPDATE agent_presence SET seen_ms = seen_ms - ?1, first_seen_ms = first_seen_ms - ?1"


@pytest.mark.parametrize(
    ("silent_ms", "is_on_live_node", "is_with_dead_node", "is_busy", "state"),
    [
        (QUIET_MS + 1, True, False, False, AgentState.ALIVE),
        (0, False, True, True, AgentState.GONE),
        (ALIVE_MS, False, False, False, AgentState.ALIVE),
        (ALIVE_MS + 1, False, False, False, AgentState.QUIET),
        (QUIET_MS + 1, False, False, True, AgentState.QUIET),
        (QUIET_MS + 1, False, False, False, AgentState.GONE),
    ],
)
def test_the_state_of_an_agent(
    silent_ms: int, is_on_live_node: bool, is_with_dead_node: bool, is_busy: bool, state: AgentState
) -> None:
    of_node = {"is_on_live_node": is_on_live_node, "is_with_dead_node": is_with_dead_node}
    assert agent_state(silent_ms, **of_node, is_busy=is_busy) is state


async def test_an_agent_is_shown_with_all_that_it_does(mesh: MeshNode) -> None:
    node_id = mesh.identity.node_id
    for n in range(MAX_LISTED + 2):
        await mesh.locks.acquire(f"task:{n}", agent="ann", ttl=60)
    waiting = asyncio.create_task(mesh.locks.acquire("task:0", agent="ben", wait=30))
    await mesh.messages.send("ann", "hello", sender="ben")
    mesh.rhythm.status.claim("cas", "release", "executing")
    await mesh.rhythm.status.catch_up()
    await mesh.run_once()
    try:
        async for _ in mesh.store.changes():
            ann, ben, *_ = await mesh.agents.listed(fresh=True)
            if ben.waits_for:
                break
    finally:
        waiting.cancel()
        with suppress(asyncio.CancelledError, LockHeld):
            await waiting
    assert (ann.agent_id, ann.state, ann.node_id, ann.last_action) == ("ann", "alive", node_id, "lock")
    assert (ann.lock_count, ann.locks) == (MAX_LISTED + 2, tuple(f"task:{n}" for n in range(MAX_LISTED)))
    assert (ann.unread, ann.waits_for, ann.jobs) == (1, (), ())
    assert (ben.agent_id, ben.waits_for_count, ben.waits_for, ben.unread) == ("ben", 1, ("task:0",), 0)
    assert (await mesh.agents.find("ann"))._replace(age_ms=0) == ann._replace(age_ms=0)
    assert [each.agent_id for each in await mesh.agents.listed(after="ann", limit=1)] == ["ben"]
    with pytest.raises(NotKnown, match="has not acted"):
        await mesh.agents.find("eve")


async def test_an_agent_is_shown_with_the_jobs_that_it_has_taken(mesh: MeshNode) -> None:
    await mesh.jobs.schedule("build")
    (taken,) = await mesh.work.take("ann")
    found = await mesh.agents.find("ann")
    assert [(each.job_id, each.kind) for each in found.jobs] == [(taken.job.job_id, "build")]
    assert "ann" in [each.agent_id for each in await mesh.agents.listed(fresh=True)]
    await mesh.work.report(taken.job, taken.claim_token, succeeded())
    await mesh.run_once()
    found = await mesh.agents.find("ann")
    assert (found.jobs, found.last_action) == ((), "take")


async def test_an_agent_that_lives_in_a_node_is_gone_with_it(
    shared_mesh: SharedMesh, owner: MeshNode
) -> None:
    async with Mesh.open(shared_mesh.settings("lost", agent_id="ann")) as node:
        await node.run_once()
        (ann,) = await owner.agents.listed(fresh=True)
        assert (ann.agent_id, ann.state, ann.node_id) == ("ann", "alive", "lost")
    (ann,) = await owner.agents.listed(fresh=True)
    assert (ann.agent_id, ann.state, ann.node_id) == ("ann", "gone", "lost")


async def test_a_command_leaves_a_trace_of_its_agent(shared_mesh: SharedMesh, owner: MeshNode) -> None:
    async with Mesh.open_command(shared_mesh.settings("ann", agent_id="coder")) as command:
        lock = await command.locks.acquire("file:a.py")
        await command.locks.release(lock)
    (coder,) = await owner.agents.listed(fresh=True)
    assert (coder.agent_id, coder.state, coder.last_action, coder.locks) == ("coder", "alive", "lock", ())


async def test_agents_not_seen_for_long_are_listed_on_request_and_then_pruned(mesh: MeshNode) -> None:
    await mesh.messages.send("ben", "hello", sender="ann")
    await mesh.run_once()
    await _age(mesh, QUIET_MS + 1)
    assert await mesh.agents.listed(fresh=True) == []
    (ann,) = await mesh.agents.listed(with_gone=True, fresh=True)
    assert (ann.agent_id, ann.state) == ("ann", "gone")
    await _age(mesh, 30 * 24 * 3_600_000)
    await mesh.store.write(mesh.agents.prune_script())
    assert await mesh.agents.listed(with_gone=True, fresh=True) == []


async def _age(mesh: MeshNode, milliseconds: int) -> None:
    await mesh.store.write(Script(Statement(_AGE, (milliseconds,))))


def test_an_agent_is_written_now_and_then_and_not_with_every_action() -> None:
    clock = Clock()
    sightings = Sightings(("scope", "repository"), lambda: "node", clock)

    def written(*attached: str) -> list[list[object]]:
        script = sightings.script(attached)
        return [] if script is None else orjson.loads(str(script.statements[0].params[2]))

    sightings.note("ann", "lock")
    clock.now += 1.0
    assert written("ben") == [["ben", 1, "run", 0], ["ann", 0, "lock", 1_000]]
    assert written("ben") == written("ben"), "what was not written comes again"
    sightings.written()
    sightings.note("ann", "send")
    assert written("ben") == []
    clock.now += WRITE_INTERVAL_S
    assert written("ben") == [["ann", 0, "send", round(WRITE_INTERVAL_S * 1_000)]]
    sightings.written()
    clock.now += ATTACHED_INTERVAL_S
    assert written("ben") == [["ben", 1, "run", 0]]


def test_any_number_of_agents_is_written_in_bounded_pieces() -> None:
    sightings = Sightings(("scope", "repository"), lambda: "node", Clock())
    for n in range(5_000):
        sightings.note(f"agent-{n}", "send")
    sizes = []
    while (script := sightings.script()) is not None:
        sizes.append(len(orjson.loads(str(script.statements[0].params[2]))))
        sightings.written()
    assert sizes == [256] * 4
