"""Planted crons: only a cron that a signed op has added is fired, and only as the op has it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.support.attacks.hostile_writer import HostileWriter
from tests.support.nodes.town import Town
from vox_mesh import Mesh
from vox_mesh.jobs.cron_ops import CronDefinition
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.node import MeshNode
from vox_mesh.oplog import roles

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


def come_due(hostile: HostileWriter) -> None:
    hostile.run("UPDATE job_crons SET next_ms = 1 WHERE scope_id = ?1 AND repository_id = ?2")


async def test_a_cron_that_is_only_a_row_is_not_fired(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    await owner.crons.add("genuine", "0 * * * *", TIDY)
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
    (removed,) = [each for each in await owner.crons.listed() if each.name == "removed"]
    await owner.crons.remove("removed")
    hostile.insert("job_crons", **removed._asdict())
    hostile.run(
        "UPDATE job_crons SET manifest = replace(manifest, 'tidy', 'other') "
        "WHERE scope_id = ?1 AND repository_id = ?2 AND name = 'changed'"
    )
    come_due(hostile)
    assert await fired(other) == ["genuine"]


async def test_crons_from_before_there_were_ops_are_adopted_once_by_the_owner(
    town: Town, hostile: HostileWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = lambda node_id, key: canonical({"key": key, "node": node_id})  # noqa: E731
    monkeypatch.setattr(roles, "initialisation", earlier)
    async with Mesh.open(town.settings("owner")) as owner, Mesh.open(town.settings("other")) as other:
        hostile.insert("job_crons", **row_of("earlier"))
        assert await fired(other) == []  # it is not the owner
        assert await fired(owner) == ["earlier"]
        come_due(hostile)
        hostile.insert("job_crons", **row_of("planted"))
        assert await fired(other) == ["earlier"]
        come_due(hostile)
        assert "planted" not in await fired(owner)
