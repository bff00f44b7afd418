"""Commands send and receive next to their node, with its key, and leave a log that is sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import VoxCommand
from tests.support.messages.messaging import bodies, found
from tests.support.nodes.shared_mesh import SharedMesh, assert_whole
from tests.support.running.lengths import SHARED_HOMES
from tools.homes import HomeCase
from vox_mesh import Mesh, load_settings
from vox_mesh.errors import KeyRefused
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.model.messages.records import MessageState
from vox_mesh.model.oplog.chain import COMMANDS
from vox_mesh.store import new_key


@pytest.fixture(params=SHARED_HOMES, ids=str)
def shared_mesh(request: pytest.FixtureRequest, tmp_path: Path) -> SharedMesh:
    """A mesh that many can share, on each home in turn."""
    case: HomeCase = request.param
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    return SharedMesh(case, tmp_path, server, new_key())


async def test_commands_send_claim_and_acknowledge(shared_mesh: SharedMesh) -> None:
    settings = shared_mesh.settings("worker")
    async with Mesh.open(settings) as node:
        async with Mesh.open_command(settings) as command:
            sent = await command.messages.send("z", 1, sender="a")
            assert (sent.sender_node, sent.sender_incarnation) == ("worker", None)
            assert Hlc.parse(sent.hlc).author == "worker" + COMMANDS
        (held,) = await node.messages.poll_inbox_from_db("z")
        await node.messages.ack(held)
        await node.messages.send("z", 2, sender="a")
        async with Mesh.open_command(settings) as command:
            assert bodies(await command.messages.poll_inbox_from_db("z")) == [2]
            assert await node.messages.poll_inbox_from_db("z") == []
        (again,) = await node.messages.poll_inbox_from_db("z")  # the command has ended without a word
        await node.messages.nack(again, retry_in=0)
        async with Mesh.open_command(settings) as command:
            (held,) = await command.messages.poll_inbox_from_db("z")
            await command.messages.ack(held)
        assert (await found(node, held)).state == MessageState.ACKED
        await assert_whole(node)


async def test_a_command_sends_before_its_node_has_ever_run(shared_mesh: SharedMesh) -> None:
    async with Mesh.open_command(shared_mesh.settings("worker")) as command:
        await command.messages.send("z", 1, sender="a")
    async with Mesh.open(shared_mesh.settings("other")) as other:
        assert bodies(await other.messages.poll_inbox_from_db("z")) == [1]
        await assert_whole(other)
    async with Mesh.open(shared_mesh.settings("worker")) as node:
        await node.messages.send("z", 2, sender="a")
        await assert_whole(node)
    async with Mesh.open_command(shared_mesh.settings("worker")) as command:
        await command.oplog.anchor()  # the chain has its first entry now, by the same key
        assert bodies(await command.messages.poll_inbox_from_db("z")) == [1, 2]
        await assert_whole(command)


async def test_a_command_with_another_key_sends_nothing(shared_mesh: SharedMesh) -> None:
    settings = shared_mesh.settings("worker")
    async with Mesh.open_command(settings) as command:
        await command.messages.send("z", 1, sender="a")
    shared_mesh.forget_key("worker")
    async with Mesh.open_command(settings) as command:
        with pytest.raises(KeyRefused):
            await command.messages.send("z", 2, sender="a")
        assert bodies(await command.messages.queries.listed()) == [1]


async def test_a_node_whose_command_has_only_sent_can_be_given_another_key(shared_mesh: SharedMesh) -> None:
    async with Mesh.open(shared_mesh.settings("owner")) as owner:
        async with Mesh.open(shared_mesh.settings("worker")) as worker:
            await worker.oplog.anchor()
        async with Mesh.open_command(shared_mesh.settings("worker")) as command:
            await command.messages.send("z", "before", sender="a")
        shared_mesh.forget_key("worker")
        with pytest.raises(KeyRefused):
            async with Mesh.open(shared_mesh.settings("worker")):
                pass
        await owner.store.synced()
        await owner.roles.rekey("worker")
        async with Mesh.open(shared_mesh.settings("worker")):
            pass
        async with Mesh.open_command(shared_mesh.settings("worker")) as command:
            await command.messages.send("z", "after", sender="a")
            await command.oplog.anchor()
        await owner.store.synced()
        assert bodies(await owner.messages.poll_inbox_from_db("z")) == ["before", "after"]
        await assert_whole(owner)


async def test_the_log_and_the_doctor_are_content_after_commands_have_sent(tmp_path: Path) -> None:
    vox = VoxCommand.with_home(tmp_path)
    settings = load_settings(_env_file=None, enabled=True)  # as the commands have them, in their folder
    for number in range(2):
        async with Mesh.open_command(settings) as command:
            await command.messages.send("z", number, sender="a")
    for arguments in (("oplog", "verify"), ("doctor",)):
        ended = vox(*arguments)
        assert ended.code == 0, ended
    async with Mesh.open(settings) as node:
        assert bodies(await node.messages.poll_inbox_from_db("z")) == [0, 1]
    assert vox("oplog", "verify").code == 0
