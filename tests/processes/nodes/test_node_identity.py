"""Who a process is: several in one folder, one of a name at a time, and commands next to them."""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.processes.conftest import StartWriter
from tests.support.running.jobs import Job
from tests.support.running.lengths import cases_in_soak
from tests.support.running.processes import Report, Writer
from tests.support.store.leftovers import descriptors, left_behind
from tests.support.store.tables import make_table
from tests.support.store.writers import COLUMNS
from tools.homes import FILE, MESH, HomeCase
from tools.sqld import Server
from vox_mesh import Settings, open_store
from vox_mesh.errors import KeyRefused, MeshError, NodeInUse, SlotInUse
from vox_mesh.mesh import Mesh
from vox_mesh.model.nodes.liveness import DEAD_AFTER_TICKS, NodeState
from vox_mesh.nodes.nodes import Node
from vox_mesh.store.slots import slot_folder

_PROCESSES = 5
_COMMANDS = 8
_NAME = "builder"
_TICK_MS = 200
_PATIENCE_S = 60.0


@pytest.fixture(params=[FILE, MESH], ids=str)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Settings]:
    """Makes settings for each home that several processes can share, always for the same mesh."""
    case: HomeCase = request.param
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    first = case.settings(tmp_path, server)

    def settings(**more: Any) -> Settings:
        return case.settings(tmp_path, server, scope_id=first.scope_id, **more)

    return settings


async def _introduced(author: Writer) -> Report:
    await author.until(bool)
    return author.reports[0]


def _copied(settings: Settings, folder: Path) -> Settings:
    """The same node in another place: a copy of its folder."""
    assert settings.node_id is not None
    own = slot_folder(settings.home_dir, settings.node_id)
    shutil.copytree(own, slot_folder(folder, settings.node_id))
    return settings.model_copy(update={"home_dir": folder})


async def _one(settings: Settings, name: str) -> Node:
    async with Mesh.open_command(settings) as mesh:
        node = await mesh.nodes.find(name)
        assert node is not None
        return node


async def _incarnation(settings: Settings) -> int | None:
    """Begin as a node, and leave again."""
    async with Mesh.open(settings) as mesh:
        return mesh.incarnation


def _assert_names_holder(error: MeshError, pid: int) -> None:
    assert f"process {pid} on {socket.gethostname()}" in str(error)
    assert re.search(r"\d s ago", str(error))


# --- several in one folder ---------------------------------------------------------------------------


async def test_five_processes_in_one_folder_are_five_nodes_and_one_of_them_is_the_owner(
    shared: Callable[..., Settings], start_author: StartWriter
) -> None:
    settings = shared()

    async def life() -> list[Report]:
        authors = [await start_author(settings, Job("sit")) for _ in range(_PROCESSES)]
        found = [await _introduced(author) for author in authors]
        await asyncio.gather(*(author.finish() for author in authors))
        return sorted(found, key=lambda each: str(each["slot"]))

    first = await life()
    for what in ("node", "key", "slot"):
        assert len({each[what] for each in first}) == _PROCESSES
    assert [each["slot"] for each in first] == ["1", "2", "3", "4", "5"]
    assert [each["incarnation"] for each in first] == [1] * _PROCESSES
    assert await life() == [each | {"incarnation": 2} for each in first]
    async with Mesh.open_command(settings) as mesh:
        (initialised,) = await mesh.oplog.tail(_PROCESSES, kind="InitialiseMesh")
        owner = await mesh.roles.owner()
        assert owner is not None
        assert initialised.accepted
        assert owner.node_id == initialised.node_id == first[0]["node"]
        assert {chain.problem for chain in await mesh.oplog.verify()} == {None}


async def test_a_number_as_a_name_is_not_a_slot_of_those_without_a_name(
    shared: Callable[..., Settings],
) -> None:
    async with Mesh.open(shared(node_id="1")) as named, Mesh.open(shared()) as unnamed:
        assert named.identity.node_id == "1"
        assert unnamed.identity.node_id != "1"
        assert unnamed.identity.key.public != named.identity.key.public
    async with Mesh.open(shared()) as unnamed_again:
        assert unnamed_again.identity.node_id == unnamed.identity.node_id


# --- commands ------------------------------------------------------------------------------------------


async def test_commands_run_at_once_beside_a_node_that_appends_and_write_in_one_chain(
    shared: Callable[..., Settings], start_author: StartWriter
) -> None:
    settings = shared()
    async with await open_store(settings) as store:
        table = await make_table(store, COLUMNS)
    author = await start_author(settings, Job("stream", table, "node", callers=2))
    node = await _introduced(author)

    async def command() -> str:
        async with Mesh.open_command(settings) as mesh:
            assert (mesh.identity.node_id, mesh.identity.key.public) == (node["node"], node["key"])
            return (await mesh.oplog.anchor()).key

    anchors = await asyncio.gather(*(command() for _ in range(_COMMANDS)))
    await author.until_more(10)
    await author.finish()
    async with Mesh.open_command(settings) as mesh:
        found = await mesh.oplog.tail(100, node_id=f"{node['node']}/cli")
        assert {each.op_id for each in found if each.kind == "Anchor"} == {*anchors}
        assert [each.seq for each in found] == list(range(1, len(found) + 1))
        chains = {chain.node_id: chain for chain in await mesh.oplog.verify()}
        assert chains.keys() == {node["node"], f"{node['node']}/cli"}
        assert not any(chain.problem for chain in chains.values())
        assert chains[f"{node['node']}/cli"].sealed_to == len(found) - 1
        assert [each.node_id for each in await mesh.nodes.all()] == [node["node"]]


# --- one of a name at a time -----------------------------------------------------------------------------


async def test_a_name_in_use_is_refused_and_the_holder_named_in_its_folder_and_elsewhere(
    shared: Callable[..., Settings], tmp_path: Path, start_author: StartWriter
) -> None:
    settings = shared(node_id=_NAME)
    author = await start_author(settings, Job("sit"))
    await _introduced(author)
    pid = (await _one(settings, _NAME)).pid
    copied = _copied(settings, tmp_path / "copy")
    other_key = settings.model_copy(update={"home_dir": tmp_path / "other"})
    before = descriptors()
    ours = left_behind(before)
    for elsewhere, refusal in ((settings, SlotInUse), (copied, NodeInUse), (other_key, NodeInUse)):
        with pytest.raises(refusal) as refused:
            await _incarnation(elsewhere)
        _assert_names_holder(refused.value, pid)
    assert left_behind(before) == ours
    assert (await _one(settings, _NAME)).incarnation == 1
    await author.finish()
    with pytest.raises(KeyRefused, match=_NAME):
        await _incarnation(other_key)
    assert await _incarnation(copied) == 2
    assert await _incarnation(settings) == 3


@pytest.mark.parametrize("shared", [MESH, *cases_in_soak(FILE)], indirect=True, ids=str)
async def test_after_a_kill_the_name_is_free_at_once_in_its_place_and_elsewhere_when_it_counts_as_dead(
    shared: Callable[..., Settings], tmp_path: Path, start_author: StartWriter
) -> None:
    settings = shared(node_id=_NAME, tick=f"{_TICK_MS}ms")
    for incarnation in (1, 2):
        author = await start_author(settings, Job("sit"))
        assert (await _introduced(author))["incarnation"] == incarnation
        await author.kill()
    dead = await _one(settings, _NAME)
    copied = _copied(settings, tmp_path / "copy")
    async with asyncio.timeout(_PATIENCE_S):
        while (incarnation_elsewhere := await _begun(copied)) is None:
            pass  # refused: it may still be alive
    assert incarnation_elsewhere == 3
    began = (await _one(settings, _NAME)).started_ms
    assert began - dead.last_seen_ms >= DEAD_AFTER_TICKS * _TICK_MS


async def _begun(settings: Settings) -> int | None:
    try:
        return await _incarnation(settings)
    except NodeInUse:
        return None


# --- the database away at the start ------------------------------------------------------------------------


async def test_a_node_that_starts_while_the_server_is_away_is_known_once_it_is_back(
    tmp_path: Path, server: Server, start_author: StartWriter
) -> None:
    settings = MESH.settings(tmp_path, server, tick=f"{_TICK_MS}ms", db_deadline="1s")
    server.kill()
    author = await start_author(settings, Job("sit"))
    assert (await _introduced(author))["incarnation"] is None
    await asyncio.to_thread(server.start)
    async with Mesh.open_command(settings) as mesh, asyncio.timeout(_PATIENCE_S):
        async for nodes in mesh.nodes.watch():
            if nodes:
                break
        (node,) = nodes
        assert (node.node_id, node.incarnation) == (author.reports[0]["node"], 1)
        assert node.state is NodeState.ALIVE
        owner = await mesh.roles.owner()
        while owner is None:
            owner = await mesh.roles.owner()
        assert owner.node_id == node.node_id
    await author.finish()
