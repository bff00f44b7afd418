"""Entries name the agent that acts, once every live node can read that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.nodes.test_features import another
from tests.support.oplog.authoring import NOTE, NOTE_KIND, assert_sound
from tests.support.oplog.exports import exported
from vox_mesh import Mesh, Op, Script, Settings, Statement, acting_as
from vox_mesh.errors import BadValue
from vox_mesh.node import MeshNode
from vox_mesh.oplog.export import verify_export
from vox_mesh.oplog.writer import AGENTS_NAMED
from vox_mesh.store.schema.statements import named
from vox_mesh.store.spool.spool import decode, encode


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A mesh in a file."""
    return Settings(enabled=True, db_path=tmp_path / "mesh.db", home_dir=tmp_path / "home", agent_id="ada")


@pytest.fixture
async def node(settings: Settings) -> AsyncIterator[MeshNode]:
    """A node whose agent is ada."""
    async with Mesh.open(settings) as node:
        node.oplog.register(NOTE_KIND)
        yield node


async def agents(mesh: Mesh) -> list[str | None]:
    """Who wrote the notes."""
    return [entry.agent for entry in await mesh.oplog.tail(100, kind=NOTE)]


async def test_the_agent_of_the_process_acts_unless_another_is_named(node: MeshNode) -> None:
    await node.oplog.append(NOTE, {})
    with acting_as("eve"):
        await node.oplog.append(NOTE, {})
    await node.oplog.append(NOTE, {})
    assert await agents(node) == ["ada", "eve", "ada"]
    (of_eve,) = await node.oplog.tail(agent="eve")
    assert of_eve.agent == "eve"
    await assert_sound(node)


async def test_without_an_agent_the_node_acts(settings: Settings) -> None:
    async with Mesh.open(settings.model_copy(update={"agent_id": None})) as node:
        node.oplog.register(NOTE_KIND)
        await node.oplog.append(NOTE, {})
        assert await agents(node) == [node.identity.node_id]


async def test_commands_name_their_agent_too(node: MeshNode, settings: Settings) -> None:
    async with Mesh.open_command(settings.model_copy(update={"agent_id": "bob"})) as command:
        command.oplog.register(NOTE_KIND)
        await command.oplog.append(NOTE, {})
    assert await agents(node) == ["bob"]
    await assert_sound(node)


@pytest.mark.parametrize("name", ["", " eve", "role:qa", "x" * 200])
def test_a_name_that_no_agent_has_is_refused(name: str) -> None:
    with pytest.raises(BadValue, match="agent name"), acting_as(name):
        raise AssertionError


async def test_entries_of_version_1_are_written_while_an_older_node_lives(settings: Settings) -> None:
    async with Mesh.open(settings) as old:
        await another(old, "older", AGENTS_NAMED - 1)
        async with Mesh.open_command(settings) as command:
            command.oplog.register(NOTE_KIND)
            with acting_as("eve"):
                await command.oplog.append(NOTE, {})
        assert await agents(old) == [None]
        await old.store.write(Script(Statement(named("nodes")["leave"], (*old.store.mesh_id, "older"))))
        async with Mesh.open_command(settings) as command:
            command.oplog.register(NOTE_KIND)
            await command.oplog.append(NOTE, {})
        assert await agents(old) == [None, "ada"]
        await assert_sound(old)


async def test_a_node_begins_to_name_agents_when_the_older_ones_are_gone(settings: Settings) -> None:
    async with Mesh.open(settings) as first:
        await another(first, "older", AGENTS_NAMED - 1)
        async with Mesh.open(settings.model_copy(update={"node_id": "second"})) as second:
            second.oplog.register(NOTE_KIND)
            await second.oplog.append(NOTE, {})
            await second.oplog.hear_of_readers()
            await second.oplog.append(NOTE, {})
            mesh = first.store.mesh_id
            await first.store.write(Script(Statement(named("nodes")["leave"], (*mesh, "older"))))
            await second.oplog.hear_of_readers()
            await second.oplog.append(NOTE, {})
            assert await agents(second) == [None, None, "ada"]
            await assert_sound(second)


async def test_who_acted_can_t_be_changed_unnoticed(node: MeshNode) -> None:
    await node.oplog.append(NOTE, {})
    for name in ("'eve'", "NULL"):
        change = f"UPDATE agent_oplog SET agent = {name} WHERE kind = '{NOTE}'"
        await node.store.write(Script(Statement(change)))
        (report,) = await node.oplog.verify()
        assert report.problem == "its contents do not have its hash"


async def test_an_export_holds_entries_of_both_versions(settings: Settings, tmp_path: Path) -> None:
    async with Mesh.open(settings) as node:
        await another(node, "older", AGENTS_NAMED - 1)
        async with Mesh.open_command(settings) as command:
            command.oplog.register(NOTE_KIND)
            await command.oplog.append(NOTE, {})
        await exported(node, tmp_path / "log.jsonl")
        lines = (tmp_path / "log.jsonl").read_text().splitlines()
        assert [NOTE in line and '"agent"' in line for line in lines].count(True) == 0
        assert any('"agent":"ada"' in line for line in lines)
        verified = verify_export(tmp_path / "log.jsonl")
        assert not [chain.problem for chain in verified.chains if chain.problem]


def test_a_spooled_op_keeps_its_agent() -> None:
    with acting_as("eve"):
        script = Script(op=Op(NOTE, "{}"), appendable=True)
    assert decode(encode(script)).op == Op(NOTE, "{}", agent="eve")
