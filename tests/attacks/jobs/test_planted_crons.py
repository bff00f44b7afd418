"""Planted crons: only a cron that a signed op has added is fired, and only as the op has it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.support.attacks.hostile_writer import HostileWriter
from tests.support.nodes.shared_mesh import SharedMesh
from vox_mesh import Mesh
from vox_mesh.errors import BadValue, NotKnown
from vox_mesh.jobs.scheduling.cron_ops import CronDefinition, adopting
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.scheduling.cron import Cron
from vox_mesh.model.oplog.op_names import ADD_CRON, ADOPT_CRONS, REMOVE_CRON
from vox_mesh.node import MeshNode
from vox_mesh.oplog import roles
from vox_mesh.store import Script

TIDY = Manifest.of(kind="tidy")


def row_of(kind: str, **columns: Any) -> dict[str, Any]:
    """Return the row of a cron that is due."""
    manifest = canonical(Manifest.of(kind=kind).core())
    row = {"name": kind, "expression": "0 * * * *", "timezone": "UTC", "manifest": manifest, "options": "{}"}
    return {**row, "next_ms": 1, "added_ms": 1, **columns}


async def fired(node: MeshNode) -> list[str]:
    """Fire all crons that are due, and return their names."""
    await node.store.synced()
    job_ids = await node.crons.fire_due()
    jobs = [await node.jobs.find(job_id) for job_id in job_ids]
    return sorted(orjson.loads(job.manifest)["nonce"].partition("@")[0] for job in jobs)


def come_due(hostile: HostileWriter, at_ms: int = 1) -> None:
    hostile.run("UPDATE job_crons SET next_ms = ?3 WHERE scope_id = ?1 AND repository_id = ?2", at_ms)


async def adopt(owner: MeshNode, *names: str) -> None:
    """Have crons count as old ones, whose latest time may have been missed."""
    crons = {each.name: each.definition for each in await owner.crons.listed() if each.name in names}
    await owner.store.write(Script(op=adopting(crons)))


async def test_a_cron_that_is_only_a_row_is_not_fired(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    await owner.crons.add("genuine", "0 * * * *", TIDY)
    await adopt(owner, "genuine")
    row = row_of("planted")
    hostile.insert("job_crons", **row)
    payload = {"crons": {"planted": [row[name] for name in CronDefinition._fields]}}
    for chain, kind in (("stranger", "AddCron"), ("owner/cli", "AddCron"), ("owner/cli", "AdoptCrons")):
        hostile.plant_entry(chain, kind, payload)
    come_due(hostile)
    assert await fired(other) == ["genuine"]
    come_due(hostile)
    assert "planted" not in await fired(owner)


async def test_a_cron_whose_row_was_changed_or_put_back_is_not_fired(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    for name in ("changed", "removed", "genuine"):
        await owner.crons.add(name, "0 * * * *", TIDY)
    await adopt(owner, "genuine", "changed", "removed")
    (removed,) = [each for each in await owner.crons.listed() if each.name == "removed"]
    await owner.crons.remove("removed")
    hostile.insert("job_crons", **removed._asdict())
    hostile.run(
        "UPDATE job_crons SET manifest = replace(manifest, 'tidy', 'other') "
        "WHERE scope_id = ?1 AND repository_id = ?2 AND name = 'changed'"
    )
    come_due(hostile)
    assert await fired(other) == ["genuine"]


async def test_a_cron_whose_removal_is_marked_as_refused_is_not_fired(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    await owner.crons.add("removed", "0 * * * *", TIDY)
    await adopt(owner, "removed")
    (removed,) = await owner.crons.listed()
    await owner.crons.remove("removed")
    hostile.mark_refused(REMOVE_CRON)
    hostile.insert("job_crons", **removed._replace(next_ms=1)._asdict())
    assert await fired(other) == []
    hostile.mark_accepted(REMOVE_CRON)
    assert await fired(owner) == []


async def test_a_refused_removal_or_definition_changes_no_cron(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    with pytest.raises(NotKnown):
        await owner.crons.remove("genuine")
    await owner.store.write(owner.oplog.seal_script())
    await owner.crons.add("genuine", "0 * * * *", TIDY)
    await adopt(owner, "genuine")
    with pytest.raises(BadValue):
        await owner.crons.add("genuine", "* * * * *", TIDY)
    hostile.mark_accepted(ADD_CRON)
    come_due(hostile)
    assert await fired(other) == ["genuine"]


async def test_a_genuine_cron_is_fired_only_at_the_times_of_its_schedule(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    await owner.crons.add("new", "0 0 1 1 *", TIDY)
    await owner.crons.add("old", "0 0 1 1 *", TIDY)
    await adopt(owner, "old")
    come_due(hostile)  # the times before it was added have not been missed
    assert await fired(other) == ["old"]
    for late_ms in (2, 1):  # at times of the attacker's choice, each for a job of its own
        come_due(hostile, owner.clock.now_ms - late_ms)
        assert await fired(other) == await fired(owner) == []
    for table in ("jobs", "job_counts"):  # or the same time again, as if it had not been fired
        hostile.run(f"DELETE FROM {table} WHERE scope_id = ?1 AND repository_id = ?2")
    come_due(hostile)
    assert await fired(other) == []
    await owner.store.synced()
    now_ms = owner.clock.now_ms
    assert all(
        each.next_ms == Cron(each.expression, each.timezone).after(now_ms)
        for each in await owner.crons.listed()
    )


async def test_crons_from_before_there_were_ops_are_adopted_once_by_the_owner(
    shared_mesh: SharedMesh, hostile: HostileWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = lambda node_id, key, _: canonical({"key": key, "node": node_id})  # noqa: E731
    monkeypatch.setattr(roles, "initialisation", earlier)
    async with (
        Mesh.open(shared_mesh.settings("owner")) as owner,
        Mesh.open(shared_mesh.settings("other")) as other,
    ):
        hostile.insert("job_crons", **row_of("earlier"))
        assert await fired(other) == []  # it is not the owner
        assert await fired(owner) == ["earlier"]
        come_due(hostile)
        hostile.insert("job_crons", **row_of("planted"))
        assert await fired(other) == ["earlier"]
        hostile.mark_refused(ADOPT_CRONS)  # as if it had to be done again
        come_due(hostile)
        assert "planted" not in await fired(owner)
