"""The key of a chain: commands write next to each other, and still with one key only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.homes import FILE
from vox_mesh import Settings
from vox_mesh.errors import KeyRefused, Refused
from vox_mesh.mesh import Mesh
from vox_mesh.nodes.identity import temporary_identity
from vox_mesh.store.script import new_key


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A node with a name, and its commands."""
    return FILE.settings(tmp_path, None, scope_id="", node_id="worker")


async def assert_sound(settings: Settings) -> None:
    async with Mesh.open_command(settings) as mesh:
        assert [chain.problem for chain in await mesh.oplog.verify() if chain.problem] == []


async def test_a_command_that_began_before_its_node_got_another_key_writes_no_more(
    settings: Settings, tmp_path: Path
) -> None:
    owning = settings.model_copy(update={"node_id": "owner", "home_dir": tmp_path / "owner"})
    async with Mesh.open(owning) as owner:
        async with Mesh.open(settings):
            pass
        async with Mesh.open_command(settings) as command:
            await command.oplog.anchor()
            await owner.roles.rekey("worker", temporary_identity("worker").key.public)
            with pytest.raises(KeyRefused):
                await command.oplog.anchor()
        assert [chain.problem for chain in await owner.oplog.verify() if chain.problem] == []


async def test_of_two_commands_that_write_first_with_different_keys_one_is_refused(
    settings: Settings, tmp_path: Path
) -> None:
    async with Mesh.open(settings.model_copy(update={"node_id": "owner"})):
        pass
    elsewhere = settings.model_copy(update={"home_dir": tmp_path / "elsewhere"})
    async with Mesh.open_command(settings) as here, Mesh.open_command(elsewhere) as there:
        seen = await there.oplog.heads()
        await here.oplog.anchor()
        with pytest.raises(KeyRefused) as refused:
            await there.store.write(there.oplog.anchor_script(seen))
        assert there.identity.key.public in refused.value.line
    await assert_sound(settings)


async def test_the_owner_keeps_its_key(settings: Settings) -> None:
    async with Mesh.open(settings):
        pass
    async with Mesh.open_command(settings) as command:
        await command.oplog.anchor()
        with pytest.raises(Refused) as refused:
            await command.roles.rekey("worker", temporary_identity("worker").key.public)
        assert refused.value.reason == "the_owner_keeps_its_key"
        owner = await command.roles.owner()
        assert owner is not None
        assert owner.public_key == command.identity.key.public
    await assert_sound(settings)


async def test_an_op_of_a_command_is_there_once_also_if_it_is_sent_again(settings: Settings) -> None:
    async with Mesh.open(settings):
        pass
    key = new_key()
    for is_again in (False, True):
        async with Mesh.open_command(settings) as command:
            outcome = await command.oplog.append("RestoreBackup", {"rows": 1}, key=key)
            assert outcome.repeated is is_again
    await assert_sound(settings)
