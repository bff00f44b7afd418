"""Seals, anchors and the tick that carries them: what vouches for the log, and what it costs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest

from tests.support.nodes.clocks import Clock
from tests.support.oplog.authoring import (
    NOTE,
    NOTE_KIND,
    RestartableNodes,
    assert_sound,
    noted,
    own_chain,
    scene,
)
from vox_mesh import Outcome, Script, Settings, Statement, guard
from vox_mesh.errors import DatabaseUnavailable, OutcomeUnknown, Refused, Unreachable
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.backends import Backend
from vox_mesh.model.oplog.chain import ANCHOR, SEAL, LogEntry
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.store.batch import Batch

CLOSED = guard("0", refusal="closed")


async def seal(node: Mesh) -> LogEntry:
    """Seal, and give the seal's entry."""
    outcome = await node.store.write(node.oplog.seal_script())
    (entry,) = [entry for entry in await own_chain(node) if entry.op_id == outcome.key]
    return entry


def covered(entry: LogEntry) -> tuple[int, int]:
    """Which entries a seal vouches for."""
    claim = json.loads(entry.payload)
    return claim["from"], claim["to"]


async def sealed_to(node: Mesh) -> int:
    """The last entry of the node's chain that a seal vouches for."""
    (chain,) = await node.oplog.verify(node.identity.chain)
    assert chain.problem is None
    return chain.sealed_to


async def kinds(node: Mesh) -> list[str]:
    """What the node's chain consists of."""
    return [entry.kind for entry in await own_chain(node)]


def writes(batches: list[Batch]) -> int:
    """How many of the requests write."""
    return sum(1 for batch in batches if any("INSERT" in step.sql for step in batch.steps))


# --- seals ---------------------------------------------------------------------------------------


async def test_a_seal_is_the_first_entry_of_its_request_and_covers_all_before_it(mesh: MeshNode) -> None:
    assert all(isinstance(each, Outcome) for each in await mesh.store.write_all([noted(), noted()]))
    before = len(await own_chain(mesh))
    sealing = mesh.oplog.seal_script()
    await mesh.store.write_all([noted(), Script(Statement("SELECT 1")), sealing, noted()])
    entries = (await own_chain(mesh))[before:]
    assert [entry.kind for entry in entries] == [SEAL, NOTE, NOTE]
    assert covered(entries[0])[1] == before == await sealed_to(mesh)
    assert covered(await seal(mesh)) == (before + 1, before + 3)
    await assert_sound(mesh)


async def test_a_seal_beside_scripts_that_fail_is_as_good_as_any(mesh: MeshNode) -> None:
    with pytest.raises(Refused):
        await mesh.store.write(noted(CLOSED))
    verdicts = await mesh.store.write_all([noted(CLOSED), mesh.oplog.seal_script(), noted(), Script(CLOSED)])
    assert [isinstance(verdict, Outcome) for verdict in verdicts] == [False, True, True, False]
    sealing = next(entry for entry in await own_chain(mesh) if entry.kind == SEAL)
    assert (sealing.accepted, sealing.reason, sealing.result) == (1, None, None)
    await seal(mesh)
    assert await sealed_to(mesh) == len(await own_chain(mesh)) - 1


async def test_a_seal_is_due_as_soon_as_there_is_a_verdict_without_one() -> None:
    async with scene() as there, there.node() as node:
        await node.store.write(Script(Statement("SELECT 1")))
        assert not node.oplog.is_seal_due
        await node.oplog.append(NOTE, {})
        assert node.oplog.is_seal_due
        await seal(node)
        assert not node.oplog.is_seal_due
        with pytest.raises(Refused):
            await node.store.write(noted(CLOSED))
        assert node.oplog.is_seal_due


async def test_after_a_crash_the_next_incarnation_seals_the_rest() -> None:
    async with scene() as there:
        async with there.node() as node:
            await node.oplog.append(NOTE, {})
            await seal(node)
            await node.store.write_all([noted(), noted(CLOSED)])
        async with there.node() as node:
            assert not node.oplog.is_seal_due  # it has not heard of its chain yet
            await node.store.write(Script(Statement("SELECT 1")))
            assert node.oplog.is_seal_due
            assert covered(await seal(node)) == (2, 4)
            await assert_sound(node)
            await node.close()
        async with there.node() as node:
            await node.oplog.append(NOTE, {})
            assert await kinds(node) == [NOTE, SEAL, NOTE, NOTE, SEAL, NOTE]


@pytest.mark.every_home
async def test_a_node_that_leaves_seals_in_the_same_write(mesh: MeshNode, node_settings: Settings) -> None:
    await mesh.oplog.append(NOTE, {})
    await mesh.close()
    if node_settings.backend is Backend.MEMORY:
        return
    async with Mesh.open_command(node_settings) as command:
        (node,) = await command.nodes.all()
        assert node.left_ms is not None
        entries = [entry async for page in command.oplog.entries(node.node_id) for entry in page]
        assert entries[-1].kind == SEAL
        await assert_sound(command)


@pytest.mark.every_home
async def test_commands_seal_at_their_end_what_they_and_others_have_left(node_settings: Settings) -> None:
    if node_settings.backend is Backend.MEMORY:
        pytest.skip("a command in memory shares nothing with a node")

    async def note(command: Mesh) -> None:
        command.oplog.register(NOTE_KIND)
        await command.oplog.append(NOTE, {})

    async with Mesh.open_command(node_settings) as command:
        await note(command)
    with suppress(KeyError):
        async with Mesh.open_command(node_settings) as command:
            await note(command)
            raise KeyError("it ended badly")
    async with Mesh.open_command(node_settings) as one, Mesh.open_command(node_settings) as other:
        await note(one)
        await note(other)
        await note(one)
    async with Mesh.open_command(node_settings) as command:
        found = await kinds(command)
        assert found[:3] == [NOTE, SEAL, NOTE]
        assert found[-1] == SEAL
        assert found.count(NOTE) == 5
        assert command.identity.chain.endswith("/cli")
        assert await sealed_to(command) == len(found) - 1


# --- the tick of a minute ------------------------------------------------------------------------


class Ticking:
    """A node whose time passes when the test says so."""

    def __init__(self, there: RestartableNodes, node: MeshNode, clock: Clock) -> None:
        self.node = node
        self._there = there
        self._clock = clock

    async def tick(self, after_s: float = 5.0) -> int:
        """Let time pass and tick; how many requests that took."""
        self._clock.now += after_s
        before = len(self._there.gate.batches)
        await self.node.run_once()
        return len(self._there.gate.batches) - before

    async def minute(self) -> int:
        """Let a minute pass; how many requests its last tick took."""
        await self.tick(58)  # and hear the database's time, for which no minute has passed
        return await self.tick(3)


@asynccontextmanager
async def ticking(there: RestartableNodes, node_id: str) -> AsyncIterator[Ticking]:
    """A node that has ticked once."""
    clock = Clock()
    async with there.node(node_id, Dependencies(monotonic=clock, chance=lambda: 0.5)) as node:
        await node.run_once()
        yield Ticking(there, node, clock)


async def test_once_a_minute_seal_and_anchor_travel_in_the_same_write_as_the_tick() -> None:
    async with scene() as there, ticking(there, "a") as one, ticking(there, "b") as other:
        await other.node.oplog.append(NOTE, {})
        await one.node.oplog.append(NOTE, {})
        entries = await own_chain(one.node)
        assert await one.tick() == 1
        assert await own_chain(one.node) == entries
        assert await one.minute() == 1
        assert (await kinds(one.node))[len(entries) :] == [SEAL, ANCHOR]
        assert await one.tick() == 1
        assert len(await own_chain(one.node)) == len(entries) + 2
        heads = json.loads((await own_chain(one.node))[-1].payload)["heads"]
        last = (await own_chain(other.node))[-1]
        assert heads == {"b": [last.seq, last.hash]}
        (chain,) = await one.node.oplog.verify("b")
        assert chain.anchored_to == last.seq
        await assert_sound(one.node)


async def test_only_the_live_node_with_the_lowest_id_anchors_and_only_if_a_head_moved() -> None:
    async with scene() as there, ticking(there, "a") as low, ticking(there, "b") as high:
        for each in (low, high):
            await each.node.oplog.append(NOTE, {})
        for _ in range(6):
            await low.minute()
            await high.minute()
        assert ANCHOR not in await kinds(high.node)
        anchors = (await kinds(low.node)).count(ANCHOR)
        assert anchors == 2, "the head of b moved at first, and when b sealed"
        quiet = await own_chain(low.node), await own_chain(high.node)
        await low.minute()
        await high.minute()
        assert (await own_chain(low.node), await own_chain(high.node)) == quiet
        await high.node.oplog.append(NOTE, {})
        await low.minute()
        assert (await kinds(low.node)).count(ANCHOR) == anchors + 1
        await low.node.close()
        await high.minute()
        assert (await kinds(high.node)).count(ANCHOR) == 1, "the lowest that is left takes over"
        await assert_sound(high.node)


async def test_what_could_not_be_written_in_its_minute_is_written_with_the_next_tick() -> None:
    async with scene() as there, ticking(there, "a") as one, ticking(there, "b") as other:
        await other.node.oplog.append(NOTE, {})
        one.node._heartbeat._tick_s = 0.05
        there.gate.before.extend([None, *[Unreachable("no route")] * 10_000])
        with pytest.raises((DatabaseUnavailable, OutcomeUnknown)):
            await one.minute()
        there.gate.before.clear()
        one.node._heartbeat._tick_s = 5.0
        assert ANCHOR not in await kinds(one.node)
        await one.tick()
        assert (await kinds(one.node))[-2:] == [SEAL, ANCHOR]


@pytest.mark.parametrize("chance", ["even", "always early", "any"])
async def test_an_idle_node_makes_at_most_15_writes_a_minute(chance: str, seed: int) -> None:
    random = Random(seed)
    draw = {"even": lambda: 0.5, "always early": lambda: 0.0, "any": random.random}[chance]
    async with scene() as there:
        clock = Clock()
        async with there.node("a", Dependencies(monotonic=clock, chance=draw)) as node:
            await node.run_once()
            await node.oplog.append(NOTE, {})
            for _ in range(5):
                minute_ends = clock.now + 60
                there.gate.batches.clear()
                while (pause := node._heartbeat.pause_s) + clock.now < minute_ends:
                    assert 4.5 <= pause <= 5.5
                    clock.now += pause
                    await node.run_once()
                clock.now = minute_ends
                assert 10 <= writes(there.gate.batches) <= 15
            assert (await kinds(node)).count(SEAL) == 1, "an idle node has nothing more to vouch for"
            await assert_sound(node)
