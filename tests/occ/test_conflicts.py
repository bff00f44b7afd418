"""Review: a conflict is resolved once, on the row that was looked at, and the log tells by whom and why."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.oplog.authoring import assert_sound
from tests.support.oplog.rivals import MEMORIES, at, delete, overtaken, row
from tests.support.store.tables import make_table
from tools.homes import FILE, MEMORY, MESH, MESH_REPLICA, HomeCase
from vox_mesh import Conflict, ConflictRecorded, Manual, Mesh, Take, Written
from vox_mesh.errors import AlreadyResolved, BadValue, ClockOff, MergeClash, NotKnown, RowMoved
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.occ import conflicts
from vox_mesh.occ.conflicts import GONE

_RESOLVE: Final = "ResolveConflict"
_SOON_S: Final = 30.0
_RESOLVERS: Final = 8


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[MeshNode]:
    """A node on the memory home."""
    async with Mesh.open(MEMORY.settings(tmp_path, None, tick="1h", agent_id="planner")) as node:
        yield node


async def conflict_on(mesh: Mesh, name: str, *, is_gone: bool = False, **right: Any) -> Conflict:
    """A recorded conflict on a memory, whose left side has `left` as its content."""
    base, _ = await overtaken(mesh, name, **right)
    if is_gone:
        await delete(mesh, name)
    outcome = await mesh.occ.write(MEMORIES, at(name), {"content": "left"}, base, strategy=Manual())
    assert isinstance(outcome, ConflictRecorded)
    return await mesh.conflicts.find(outcome.conflict_id)


async def resolutions(mesh: Mesh) -> list[LogEntry]:
    """The resolutions in the log."""
    return await mesh.oplog.tail(100, kind=_RESOLVE)


# --- deciding ----------------------------------------------------------------------------------------


async def test_a_conflict_is_resolved_to_either_side_to_both_or_to_a_value(mesh: MeshNode) -> None:
    expected: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "left": ({"take": "left"}, {"content": "left", "tags": "base"}),
        "right": ({"take": Take.RIGHT}, {"content": "base", "tags": "right"}),
        "merge": ({"take": Take.MERGE}, {"content": "left", "tags": "right"}),
        "value": ({"value": {"content": "other"}}, {"content": "other", "tags": "right"}),
    }
    for name, (how, values) in expected.items():
        conflict = await conflict_on(mesh, name, tags="right")
        done = await mesh.conflicts.resolve(conflict.conflict_id, **how, reason="so", agent="judge")
        assert (done.conflict_id, done.resolution) == (conflict.conflict_id, name)
        now = await row(mesh, name)
        assert now.items() >= values.items()
        assert conflict.right is not None
        assert now["written_at"] == (done.written_at or conflict.right["written_at"])
        assert (done.written_at is None) == (name == "right")
        closed = await mesh.conflicts.find(conflict.conflict_id)
        assert (closed.state, closed.resolution, closed.reason) == ("resolved", name, "so")
        assert (closed.resolved_by, closed.resolved_agent) == (mesh.identity.node_id, "judge")
        assert closed.resolved_at is not None
        assert closed.resolved_at >= closed.created_at
        (entry,) = (each for each in await resolutions(mesh) if each.op_id == done.op_id)
        outcome = json.loads(entry.payload)
        assert (entry.accepted, outcome["conflict_id"], outcome["take"]) == (1, conflict.conflict_id, name)
        assert (outcome["table"], outcome["key"], outcome["reason"]) == (MEMORIES, at(name), "so")
        assert outcome["who"] == {"node": mesh.identity.node_id, "agent": "judge"}
        assert outcome["written_at"] == done.written_at
        with pytest.raises(AlreadyResolved, match=f"resolved \\({name}\\) by judge at 20"):
            await mesh.conflicts.resolve(conflict.conflict_id, take="left")
        assert await row(mesh, name) == now
    assert await mesh.conflicts.list(open_only=True) == []
    assert len(await resolutions(mesh)) == len(expected)
    await assert_sound(mesh)


async def test_a_row_that_has_moved_on_is_shown_and_nothing_changes(mesh: MeshNode) -> None:
    conflict = await conflict_on(mesh, "a")
    assert isinstance(await mesh.occ.write(MEMORIES, at("a"), {"tags": "new"}, conflict.right), Written)
    now = await row(mesh, "a")
    for how in ({"take": "left"}, {"take": "right"}, {"value": {"content": "x"}}):
        with pytest.raises(RowMoved, match='"tags":"new"') as moved:
            await mesh.conflicts.resolve(conflict.conflict_id, **how)
        assert moved.value.now == now
        assert now["written_at"] in moved.value.hint
    assert await row(mesh, "a") == now
    assert await mesh.conflicts.find(conflict.conflict_id) == conflict
    assert [(each.accepted, each.reason) for each in await resolutions(mesh)] == [(0, "row_moved")] * 3
    with pytest.raises(RowMoved):
        await mesh.conflicts.resolve(conflict.conflict_id, take="left", onto="another")
    done = await mesh.conflicts.resolve(conflict.conflict_id, take="left", onto=now["written_at"])
    assert (await row(mesh, "a")) == now | conflict.left | {"written_at": done.written_at}
    await assert_sound(mesh)


@pytest.mark.parametrize("case", [MEMORY, FILE, MESH], ids=str)
async def test_of_many_who_resolve_at_once_one_wins_and_the_others_are_notified(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    settings = case.settings(tmp_path, server, tick="1h")
    async with Mesh.open(settings) as one, Mesh.open(settings) as two:
        meshes = [one] if case is MEMORY else [one, two]
        conflict = await conflict_on(one, "a")
        results = await asyncio.gather(
            *(
                meshes[n % len(meshes)].conflicts.resolve(conflict.conflict_id, value={"content": str(n)})
                for n in range(_RESOLVERS)
            ),
            return_exceptions=True,
        )
        (winner,) = (n for n, each in enumerate(results) if not isinstance(each, BaseException))
        losers = [each for each in results if isinstance(each, BaseException)]
        assert {type(each) for each in losers} == {AlreadyResolved}
        assert (await row(one, "a"))["content"] == str(winner)
        await one.store.synced()
        accepted = [each for each in await resolutions(one) if each.accepted]
        assert [json.loads(each.payload)["value"] for each in accepted] == [{"content": str(winner)}]
        await assert_sound(one)


async def test_of_two_conflicts_on_a_row_the_second_is_decided_on_what_the_first_has_made(
    local: MeshNode,
) -> None:
    first = await conflict_on(local, "a")
    outcome = await local.occ.write(MEMORIES, at("a"), {"tags": "second"}, first.base, strategy=Manual())
    assert isinstance(outcome, ConflictRecorded)
    done = await local.conflicts.resolve(first.conflict_id, take="left")
    with pytest.raises(RowMoved):
        await local.conflicts.resolve(outcome.conflict_id, take="right")
    await local.conflicts.resolve(outcome.conflict_id, take="merge", onto=done.written_at)
    now = await row(local, "a")
    assert (now["content"], now["tags"]) == ("left", "second")


async def test_a_deleted_row_is_written_again_or_stays_deleted(local: MeshNode) -> None:
    for take, is_there in (("left", True), ("right", False)):
        conflict = await conflict_on(local, take, is_gone=True)
        with pytest.raises(MergeClash, match="deleted"):
            await local.conflicts.resolve(conflict.conflict_id, take="merge")
        done = await local.conflicts.resolve(conflict.conflict_id, take=take)
        now = await local.occ.read(MEMORIES, at(take))
        expected = {**at(take), **conflict.left, "written_at": done.written_at}
        assert now == (expected if is_there else None)


async def test_a_row_that_was_deleted_or_made_again_since_has_moved_on(local: MeshNode) -> None:
    conflict = await conflict_on(local, "a")
    await delete(local, "a")
    with pytest.raises(RowMoved, match="it was deleted") as moved:
        await local.conflicts.resolve(conflict.conflict_id, take="right")
    assert (moved.value.now, GONE in moved.value.hint) == (None, True)
    gone = await conflict_on(local, "b", is_gone=True)
    await local.occ.write(MEMORIES, at("b"), {"content": "again"}, None)
    with pytest.raises(RowMoved, match="again"):
        await local.conflicts.resolve(gone.conflict_id, take="left")
    assert (await row(local, "b"))["content"] == "again"
    await local.conflicts.resolve(conflict.conflict_id, value={"content": "x"}, onto=GONE)
    assert (await row(local, "a"))["content"] == "x"


async def test_a_merge_that_can_not_be_names_the_columns(local: MeshNode) -> None:
    conflict = await conflict_on(local, "a", content="right", tags="right")
    with pytest.raises(MergeClash, match=r"both changed content$") as clash:
        await local.conflicts.resolve(conflict.conflict_id, take="merge")
    assert clash.value.columns == ("content",)
    assert await local.conflicts.find(conflict.conflict_id) == conflict


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"take": "left", "value": {}},
        {"take": "middle"},
        {"value": {"nothing": 1}},
        {"value": {"memory_key": "b"}},
        {"value": {"written_at": "x"}},
        {"value": {"content": [1]}},
    ],
)
async def test_what_decides_nothing_is_refused_and_leaves_the_conflict_open(
    local: MeshNode, how: dict[str, Any]
) -> None:
    conflict = await conflict_on(local, "a")
    with pytest.raises(BadValue):
        await local.conflicts.resolve(conflict.conflict_id, **how)
    assert await local.conflicts.list(open_only=True) == [conflict]
    assert await resolutions(local) == []


async def test_whatever_a_column_can_hold_survives_a_review(local: MeshNode) -> None:
    table = await make_table(local.store, "id BLOB PRIMARY KEY, a, b, c, d, written_at TEXT")
    key = {"id": b"\xff\0"}
    left = {"a": b"\0\xfe", "b": 2**62 + 1, "c": 1.0, "d": "\0ü\U0001f600"}
    await local.occ.write(table, key, {"a": -0.0, "b": b""}, None)
    made = await local.occ.read(table, key)
    outcome = await local.occ.write(table, key, left, None, strategy=Manual())
    assert isinstance(outcome, ConflictRecorded)
    conflict = await local.conflicts.find(outcome.conflict_id)
    assert (conflict.row_key, conflict.left, conflict.right) == (key, left, made)
    await local.conflicts.resolve(outcome.conflict_id, take="left")
    now = await local.occ.read(table, key)
    assert now is not None
    assert {name: (type(now[name]), now[name]) for name in left} == {
        name: (type(value), value) for name, value in left.items()
    }


async def test_a_resolution_is_an_op_that_no_one_else_writes(local: MeshNode) -> None:
    with pytest.raises(BadValue, match="written by the mesh itself"):
        await local.oplog.append(_RESOLVE, {"conflict_id": "x"})


async def test_a_node_whose_clock_is_off_resolves_nothing(tmp_path: Path) -> None:
    ahead_ms = 0
    times = Dependencies(wall_ms=lambda: Dependencies().wall_ms() + ahead_ms)
    async with Mesh.open(MEMORY.settings(tmp_path, None, tick="1h"), times) as mesh:
        conflict = await conflict_on(mesh, "a")
        ahead_ms = 120_000
        await mesh.run_once()
        for take in Take:
            with pytest.raises(ClockOff):
                await mesh.conflicts.resolve(conflict.conflict_id, take=take)
        assert (await mesh.conflicts.find(conflict.conflict_id)).is_open


# --- looking -----------------------------------------------------------------------------------------


async def test_conflicts_are_listed_all_or_open_or_of_one_table(
    local: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conflicts, "_PAGE_SIZE", 2)
    made = [await conflict_on(local, str(n)) for n in range(5)]
    await local.conflicts.resolve(made[0].conflict_id, take="right")
    assert [each.conflict_id for each in await local.conflicts.list()] == [each.conflict_id for each in made]
    assert await local.conflicts.list(open_only=True) == made[1:]
    assert await local.conflicts.list(open_only=True, table=MEMORIES) == made[1:]
    assert await local.conflicts.list(table="agent_sessions") == []


async def test_a_conflict_is_found_by_as_much_of_its_id_as_is_its_own(local: MeshNode) -> None:
    one, two = [await conflict_on(local, name) for name in ("a", "b")]
    same = 0
    while one.conflict_id[same] == two.conflict_id[same]:
        same += 1
    assert await local.conflicts.find(one.conflict_id[: same + 1].lower()) == one
    with pytest.raises(BadValue, match="several"):
        await local.conflicts.find(one.conflict_id[:same])
    with pytest.raises(NotKnown):
        await local.conflicts.find("Z")
    for text in ("", "%", "é", "A B"):
        with pytest.raises(BadValue, match="conflict id must be"):
            await local.conflicts.find(text)


@pytest.mark.parametrize("case", [MEMORY, FILE, MESH_REPLICA], ids=str)
async def test_a_watch_tells_of_what_is_open_what_comes_and_what_is_resolved(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    async with Mesh.open(case.settings(tmp_path, server, tick="1h")) as mesh, asyncio.timeout(_SOON_S):
        before = await conflict_on(mesh, "resolved before")
        await mesh.conflicts.resolve(before.conflict_id, take="right")
        first = await conflict_on(mesh, "a")
        async with aclosing(mesh.conflicts.watch()) as watch:
            outcome = {(await anext(watch)).conflict_id}
            if outcome == {before.conflict_id}:  # it was resolved within this millisecond
                outcome = {(await anext(watch)).conflict_id}
            assert outcome == {first.conflict_id}
            second = await conflict_on(mesh, "b")
            assert await anext(watch) == second
            await mesh.conflicts.resolve(first.conflict_id, take="left")
            third = await anext(watch)
            assert (third.conflict_id, third.state) == (first.conflict_id, "resolved")
