"""Rolled-back logs: a log that was cut back, restored or wiped as a whole does not verify as untouched."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.cli.conftest import Vox
from tests.support.attacks.hostile_writer import HostileWriter
from tests.support.nodes.town import Town
from tests.support.oplog.tampering import NOTE, stranger
from tools.homes import FILE, environment
from vox_mesh import Mesh
from vox_mesh.oplog.export import export_log
from vox_mesh.store import new_key


async def work(town: Town, name: str = "owner") -> None:
    """Have a node append an op, and leave."""
    async with Mesh.open(town.settings(name)) as node:
        node.oplog.register(NOTE)
        await node.oplog.append(NOTE.name, {})


async def problems(town: Town) -> list[str]:
    async with Mesh.open_command(town.settings("owner")) as command:
        return [each.problem for each in await command.oplog.verify() if each.problem]


async def test_chains_that_were_all_cut_back_are_found_by_what_their_nodes_remember(
    town: Town, hostile: HostileWriter
) -> None:
    await work(town)
    ((kept,),) = hostile.run("SELECT max(id) FROM agent_oplog WHERE scope_id = ?1 AND repository_id = ?2")
    await work(town)
    assert await problems(town) == []
    hostile.run("DELETE FROM agent_oplog WHERE scope_id = ?1 AND repository_id = ?2 AND id > ?3", kept)
    (problem,) = await problems(town)
    assert problem.startswith("it ends here, but the memory of node owner recorded entry ")


def _town(folder: Path) -> Town:
    return Town(FILE, folder, None, new_key())


def _copy(town: Town, name: str) -> Path:
    """Copy the present database."""
    path = town.folder / name
    with closing(sqlite3.connect(town.folder / "shared.db")) as database:
        database.execute("VACUUM INTO ?", (str(path),))
    return path


def _remove(town: Town) -> None:
    for path in town.folder.glob("shared.db*"):
        path.unlink()


async def test_an_old_database_put_back_is_found(tmp_path: Path) -> None:
    town = _town(tmp_path)
    await work(town)
    old = _copy(town, "old.db")
    await work(town)
    _remove(town)
    shutil.copy(old, town.folder / "shared.db")
    cut, rolled_back = await problems(town)
    assert cut.startswith("it ends here, but the memory of node owner recorded entry ")
    assert rolled_back.startswith("the log was rolled back since the memory of node owner recorded: ")


async def test_a_wiped_database_is_found_even_after_a_node_has_begun_another_log(tmp_path: Path) -> None:
    town = _town(tmp_path)
    await work(town)
    _remove(town)
    gone, another = await problems(town)
    assert gone.startswith("it ends here, but the memory of node owner recorded entry ")
    assert another.startswith("the log is another one than the memory of node owner recorded")
    await work(town)
    found = await problems(town)
    assert len(found) == 2
    (kept,) = town.folder.rglob("*.replaced.json")
    assert all(f"the memory in {kept}" in each for each in found)
    kept.unlink()  # it was meant to be
    assert await problems(town) == []


async def test_an_earlier_export_and_the_owners_key_show_what_no_node_remembers(tmp_path: Path) -> None:
    town = _town(tmp_path)
    await work(town)
    old = _copy(town, "old.db")
    settings = town.settings("owner")
    async with Mesh.open(settings) as node:
        await node.oplog.anchor()
        await export_log(node.oplog, *node.store.mesh_id, tmp_path / "then.jsonl")
        key = node.identity.key.public
    auditor = Vox(tmp_path, **environment(settings) | {"VOX_MESH_HOME": str(tmp_path / "auditor")})
    verify = ("oplog", "verify", "--since", "then.jsonl", "--owner-key")
    assert auditor(*verify, key).code == 0
    _remove(town)
    shutil.copy(old, town.folder / "shared.db")
    assert auditor("oplog", "verify").code == 0  # it can't know
    cut = auditor(*verify, key)
    assert (cut.code, "it ends here, but the export then.jsonl recorded entry" in cut.out) == (1, True)
    _remove(town)
    await work(town, "another")
    replaced = auditor("oplog", "verify", "--owner-key", key)
    assert (replaced.code, f"no op signed with the pinned key {key}" in replaced.out) == (1, True)
    other_key = stranger().public
    from_file = auditor("oplog", "verify", "--from-file", "then.jsonl", "--owner-key", other_key)
    assert (from_file.code, f"the owner of the mesh is not {other_key}" in from_file.out) == (1, True)
