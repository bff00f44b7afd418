"""Planted rules: only a rule that a signed op has added is fired, as the op has it, by signed ops."""

from __future__ import annotations

from typing import Any, Final

import orjson
import pytest

from tests.support.attacks.hostile_writer import HostileWriter
from vox_mesh.errors import Refused
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.jobs.scheduling.rule import RuleDefinition
from vox_mesh.model.oplog.op_names import ADD_RULE, REMOVE_RULE
from vox_mesh.node import MeshNode
from vox_mesh.oplog.op_kinds import OpKind
from vox_mesh.store import Op, Script, guard

PUSHED: Final = OpKind("com.example.pushed")
BUILD: Final = {"kind": "build"}


@pytest.fixture(autouse=True)
def pushes(owner: MeshNode, other: MeshNode) -> None:
    """Both nodes know the kind of op."""
    for node in (owner, other):
        node.oplog.register(PUSHED)


def row_of(name: str, **columns: Any) -> dict[str, Any]:
    """Return the row of a rule."""
    row = {"name": name, "op_kind": PUSHED.name, "fields": "{}", "manifest": canonical(BUILD)}
    return {**row, "options": "{}", "position": 0, "fired": 0, "minute_ms": 0, "added_ms": 1, **columns}


async def fired(node: MeshNode) -> list[str]:
    """Fire all rules, and return the nonces of their jobs."""
    await node.store.synced()
    jobs = [await node.jobs.find(job_id) for job_id in await node.rules.fire()]
    return sorted(orjson.loads(job.manifest)["nonce"] for job in jobs)


async def test_a_rule_that_is_only_a_row_is_not_fired(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    await owner.rules.add("genuine", PUSHED.name, BUILD)
    row = row_of("planted")
    hostile.insert("job_rules", **row)
    for chain in ("stranger", "owner/cli"):
        definition = [row[name] for name in RuleDefinition._fields]
        hostile.plant_entry(chain, ADD_RULE, {"rules": {"planted": definition}})
    op_id = (await owner.oplog.append(PUSHED.name, {})).key
    assert await fired(other) == [f"genuine@{op_id}"]
    await owner.oplog.append(PUSHED.name, {})
    hostile.run(
        "UPDATE job_rules SET manifest = replace(manifest, 'build', 'other') "
        "WHERE scope_id = ?1 AND repository_id = ?2"
    )
    assert await fired(other) == await fired(owner) == []


async def test_an_op_that_was_verified_vouches_for_no_other_contents(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    await owner.rules.add("genuine", PUSHED.name, BUILD)
    await owner.oplog.append(PUSHED.name, {})
    assert len(await fired(other)) == 1
    await owner.oplog.append(PUSHED.name, {})
    for table, column in (("job_rules", "manifest"), ("agent_oplog", "payload")):
        change = f"{column} = replace({column}, 'build', 'other')"
        hostile.run(f"UPDATE {table} SET {change} WHERE scope_id = ?1 AND repository_id = ?2")
    hostile.plant_entry("stranger", ADD_RULE, {})  # has the ops read again
    assert await fired(other) == []


async def test_no_forged_op_fires_a_rule(owner: MeshNode, other: MeshNode, hostile: HostileWriter) -> None:
    await owner.rules.add("genuine", PUSHED.name, BUILD)
    for chain in ("stranger", "owner/cli", "other/cli"):
        hostile.plant_entry(chain, PUSHED.name, {"branch": "planted"})
    with pytest.raises(Refused):
        await owner.store.write(Script(guard("0", refusal="never"), op=Op(PUSHED.name, "{}")))
    await owner.store.write(owner.oplog.seal_script())
    hostile.run(
        "UPDATE agent_oplog SET accepted = 1 WHERE scope_id = ?1 AND repository_id = ?2 AND reason = 'never'"
    )
    genuine = (await owner.oplog.append(PUSHED.name, {"branch": "main"})).key
    hostile.plant_entry("owner", PUSHED.name, {"branch": "planted"})
    assert await fired(other) == [f"genuine@{genuine}"]


async def test_an_op_whose_payload_was_changed_fires_no_rule(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    await owner.rules.add("genuine", PUSHED.name, BUILD)
    op_id = (await owner.oplog.append(PUSHED.name, {"branch": "main"})).key
    change = "UPDATE agent_oplog SET payload = ?3 WHERE scope_id = ?1 AND repository_id = ?2 AND op_id = ?4"
    hostile.run(change, '{"branch":"planted"}', op_id)
    assert await fired(other) == []


async def test_a_rule_whose_removal_is_marked_as_refused_is_not_fired(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    await owner.rules.add("removed", PUSHED.name, BUILD)
    (removed,) = await owner.rules.listed()
    await owner.rules.remove("removed")
    hostile.mark_refused(REMOVE_RULE)
    hostile.insert("job_rules", **removed._asdict())
    await owner.oplog.append(PUSHED.name, {})
    assert await fired(other) == []


async def test_a_position_that_was_put_back_fires_for_no_op_before_the_rule_and_no_job_twice(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    await owner.oplog.append(PUSHED.name, {})
    await owner.rules.add("genuine", PUSHED.name, BUILD)
    op_id = (await owner.oplog.append(PUSHED.name, {})).key
    assert await fired(other) == [f"genuine@{op_id}"]
    (job,) = await other.jobs.queries.listed()
    hostile.run("UPDATE job_rules SET position = 0 WHERE scope_id = ?1 AND repository_id = ?2")
    assert await fired(owner) == [f"genuine@{op_id}"]
    assert await owner.jobs.queries.listed() == [job]


async def test_a_row_that_no_node_writes_stops_no_other_rule(
    owner: MeshNode, other: MeshNode, hostile: HostileWriter
) -> None:
    for name in ("a", "b"):
        await owner.rules.add(name, PUSHED.name, BUILD)
    hostile.run(
        "UPDATE job_rules SET position = 'x', fired = 'x' "
        "WHERE scope_id = ?1 AND repository_id = ?2 AND name = 'a'"
    )
    op_id = (await owner.oplog.append(PUSHED.name, {})).key
    await other.store.synced()
    assert await fired(other) == [f"b@{op_id}"]
