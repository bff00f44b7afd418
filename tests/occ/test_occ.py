"""Optimistic writes on every backend: a lost race is reported, and the strategy decides about the row."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.oplog.rivals import MEMORIES, at, delete, memory, moving, overtaken, row
from tests.support.store.tables import make_table
from tools.homes import FILE, MEMORY
from vox_mesh import (
    Conflict,
    ConflictRecorded,
    DeferToAgent,
    Manual,
    Merge,
    Merged,
    Mesh,
    Script,
    Settings,
    Skipped,
    Statement,
    TakeLeft,
    TakeRight,
    Written,
)
from vox_mesh.errors import ClockOff, ConstraintFailed, Contended
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies

_WRITERS: Final = 16


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[MeshNode]:
    """A node on the memory home."""
    async with Mesh.open(MEMORY.settings(tmp_path, None, tick="1h", agent_id="planner")) as node:
        yield node


# --- on every home -----------------------------------------------------------------------------------


async def test_a_row_is_written_only_over_the_version_that_was_read(mesh: MeshNode) -> None:
    assert await mesh.occ.read(MEMORIES, at("a")) is None
    made = await mesh.occ.write(MEMORIES, at("a"), {"content": "one"}, None)
    assert isinstance(made, Written)
    base = await row(mesh, "a")
    assert base == {
        "memory_key": "a",
        "agent_id": None,
        "content": "one",
        "tags": None,
        "importance": 0,
        "written_at": made.written_at,
    }
    again = await mesh.occ.write(MEMORIES, at("a"), base | {"content": "two"}, base)
    assert isinstance(again, Written)
    now = await row(mesh, "a")
    assert now == base | {"content": "two", "written_at": again.written_at}
    for stale in (base, None):
        assert await mesh.occ.write(MEMORIES, at("a"), {"content": "three"}, stale) == Skipped(now)
    assert await row(mesh, "a") == now
    await delete(mesh, "a")
    assert await mesh.occ.write(MEMORIES, at("a"), {"content": "three"}, now) == Skipped(None)
    assert await mesh.occ.read(MEMORIES, at("a")) is None
    assert mesh.occ.counts == {(MEMORIES, "skipped"): 3}


async def test_every_strategy_does_as_it_says(mesh: MeshNode) -> None:
    wanted = {"content": "left"}

    base, right = await overtaken(mesh, "right")
    assert await mesh.occ.write(MEMORIES, at("right"), wanted, base, strategy=TakeRight()) == Skipped(right)
    assert await row(mesh, "right") == right

    base, right = await overtaken(mesh, "left", content="right", tags="right")
    done = await mesh.occ.write(MEMORIES, at("left"), wanted, base, strategy=TakeLeft())
    assert isinstance(done, Written)
    assert done.overwritten == right
    assert await row(mesh, "left") == base | wanted | {"written_at": done.written_at}

    ids: list[str] = []
    for strategy, deferred_to in (
        (Manual(), None),
        (DeferToAgent("judge"), "judge"),
        (Merge(Manual()), None),
    ):
        base, right = await overtaken(mesh, f"review {len(ids)}")
        key = at(f"review {len(ids)}")
        outcome = await mesh.occ.write(MEMORIES, key, wanted, base, strategy=strategy, agent="coder")
        assert isinstance(outcome, ConflictRecorded)
        assert outcome.right == right == await row(mesh, key["memory_key"])
        conflict = await mesh.conflicts.find(outcome.conflict_id)
        assert (conflict.table_name, conflict.row_key, conflict.state) == (MEMORIES, key, "open")
        assert (conflict.base, conflict.right) == (base, right)
        assert conflict.left == {"agent_id": None, "content": "left", "tags": "base", "importance": 1}
        assert (conflict.left_node, conflict.left_agent) == (mesh.identity.node_id, "coder")
        assert (conflict.right_node, conflict.deferred_to) == (mesh.identity.node_id, deferred_to)
        assert conflict.strategy == ("DeferToAgent" if deferred_to else "Manual")
        ids.append(outcome.conflict_id)
    assert [conflict.conflict_id for conflict in await mesh.conflicts.list()] == ids

    base, right = await overtaken(mesh, "both", tags="right")
    merged = await mesh.occ.write(MEMORIES, at("both"), wanted, base, strategy=Merge())
    assert isinstance(merged, Merged)
    assert merged.right == right
    assert merged.row == await row(mesh, "both")
    assert merged.row == right | wanted | {"written_at": merged.written_at}

    base, right = await overtaken(mesh, "clash", content="right", tags="right")
    assert await mesh.occ.write(MEMORIES, at("clash"), wanted, base, strategy=Merge()) == Skipped(right)
    assert mesh.occ.counts == {
        (MEMORIES, "skipped"): 2,
        (MEMORIES, "overwritten"): 1,
        (MEMORIES, "recorded"): 3,
        (MEMORIES, "merged"): 1,
    }


async def test_16_writers_that_count_together_count_exactly(mesh: MeshNode) -> None:
    rounds = 2

    async def count() -> None:
        for _ in range(rounds):
            await mesh.occ.update(
                "agent_sessions", {"session_id": "s"}, lambda now: {"turns": (now["turns"] if now else 0) + 1}
            )

    await asyncio.gather(*(count() for _ in range(_WRITERS)))
    session = await mesh.occ.read("agent_sessions", {"session_id": "s"})
    assert session is not None
    assert session["turns"] == rounds * _WRITERS


async def test_of_16_who_write_in_the_same_millisecond_one_wins_and_every_other_is_notified(
    node_settings: Settings,
) -> None:
    now_ms = Dependencies().wall_ms()
    still = Dependencies(wall_ms=lambda: now_ms, elapsed=lambda: 1_000.0)
    async with Mesh.open(node_settings, still) as mesh:
        for base in (None, await memory(mesh, "b", content="base")):
            name = "a" if base is None else "b"
            results = await asyncio.gather(
                *(mesh.occ.write(MEMORIES, at(name), {"content": str(n)}, base) for n in range(_WRITERS))
            )
            (winner,) = (n for n, result in enumerate(results) if isinstance(result, Written))
            now = await row(mesh, name)
            assert now["content"] == str(winner)
            assert [each for n, each in enumerate(results) if n != winner] == [Skipped(now)] * (_WRITERS - 1)
            if base is not None:
                assert Hlc.parse(now["written_at"]).wall_ms == Hlc.parse(base["written_at"]).wall_ms
        assert mesh.occ.counts == {(MEMORIES, "skipped"): 2 * (_WRITERS - 1)}


# --- rows that come and go ---------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [TakeLeft(), Merge(TakeLeft())], ids=str)
async def test_the_left_side_of_a_deleted_row_is_written_whole(local: MeshNode, strategy: Any) -> None:
    base, _ = await overtaken(local, "a")
    await delete(local, "a")
    done = await local.occ.write(MEMORIES, at("a"), {"content": "left"}, base, strategy=strategy)
    assert isinstance(done, Written)
    assert done.overwritten is None
    assert await row(local, "a") == base | {"content": "left", "written_at": done.written_at}


@pytest.mark.parametrize("strategy", [Manual(), Merge(Manual())], ids=str)
async def test_a_deleted_row_is_a_conflict_without_a_right_side(local: MeshNode, strategy: Any) -> None:
    base, _ = await overtaken(local, "a")
    await delete(local, "a")
    outcome = await local.occ.write(MEMORIES, at("a"), {"content": "left"}, base, strategy=strategy)
    assert isinstance(outcome, ConflictRecorded)
    conflict = await local.conflicts.find(outcome.conflict_id)
    assert (conflict.base, conflict.right, conflict.right_node) == (base, None, None)
    assert await local.occ.read(MEMORIES, at("a")) is None


async def test_two_who_make_the_same_row_merge_where_they_agree(local: MeshNode) -> None:
    made = await memory(local, "a", content="same", tags="t")
    outcome = await local.occ.write(MEMORIES, at("a"), {"content": "same"}, None, strategy=Merge())
    assert outcome == Merged(made, made)
    other = await local.occ.write(MEMORIES, at("a"), {"content": "other"}, None, strategy=Merge())
    assert other == Skipped(made)


async def test_a_row_that_no_mesh_has_written_has_a_version_too(local: MeshNode) -> None:
    table = await make_table(local.store, "id TEXT PRIMARY KEY, n, written_at TEXT")
    for written_at in (None, "2026-03-01T10:00:00Z"):
        values = (str(written_at), written_at)
        await local.store.write(Script(Statement(f"INSERT INTO {table} VALUES (?, 1, ?)", values)))
        key = {"id": str(written_at)}
        base = await local.occ.read(table, key)
        assert base == {**key, "n": 1, "written_at": written_at}
        assert isinstance(await local.occ.write(table, key, {"n": 2}, base), Written)
        outcome = await local.occ.write(table, key, {"n": 3}, base, strategy=Manual())
        assert isinstance(outcome, ConflictRecorded)
    assert local.clock.flagged == 0


async def test_another_constraint_than_the_key_is_no_conflict(local: MeshNode) -> None:
    table = await make_table(local.store, "id TEXT PRIMARY KEY, n UNIQUE, written_at TEXT")
    await local.occ.write(table, {"id": "a"}, {"n": 1}, None)
    with pytest.raises(ConstraintFailed):
        await local.occ.write(table, {"id": "b"}, {"n": 1}, None, strategy=TakeLeft())
    assert isinstance(await local.occ.write(table, {"n": 2}, {"id": "b"}, None), Written)
    assert await local.occ.read(table, {"id": "b"}) == await local.occ.read(table, {"n": 2})


async def test_scopes_and_repositories_have_rows_of_their_own(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None, tick="1h")
    async with Mesh.open(settings) as one:
        made = await memory(one, "a", content="one")
        for other in ({"scope_id": "other"}, {"repository_id": "other"}):
            async with Mesh.open_command(settings.model_copy(update=other)) as two:
                assert await two.occ.read(MEMORIES, at("a")) is None
                assert isinstance(await two.occ.write(MEMORIES, at("a"), {"content": "x"}, made), Skipped)
                assert isinstance(await two.occ.write(MEMORIES, at("a"), {"content": "x"}, None), Written)
                assert await two.conflicts.list() == []
        assert await row(one, "a") == made


# --- rows that move while they are looked at ---------------------------------------------------------


async def test_the_left_side_wins_over_the_newest_right_side(local: MeshNode) -> None:
    base, _ = await overtaken(local, "a")
    moving(local, 3, {"content": "rival"})
    done = await local.occ.write(MEMORIES, at("a"), {"content": "left"}, base, strategy=TakeLeft())
    assert isinstance(done, Written)
    assert done.overwritten is not None
    assert done.overwritten["content"] == "rival 0"
    assert (await row(local, "a"))["content"] == "left"
    assert local.occ.counts == {(MEMORIES, "overwritten"): 1}


async def test_a_conflict_is_recorded_once_with_the_newest_right_side(local: MeshNode) -> None:
    base, _ = await overtaken(local, "a")
    moving(local, 3, {"content": "rival"})
    outcome = await local.occ.write(MEMORIES, at("a"), {"content": "left"}, base, strategy=Manual())
    assert isinstance(outcome, ConflictRecorded)
    (conflict,) = await local.conflicts.list()
    assert conflict.right == outcome.right == await row(local, "a")
    assert conflict.right["content"] == "rival 0"
    assert conflict.left_agent == "planner"


async def test_a_merge_holds_what_came_while_it_was_made(local: MeshNode) -> None:
    base, _ = await overtaken(local, "a", importance=2)
    moving(local, 2, {"tags": "rival"})
    merged = await local.occ.write(MEMORIES, at("a"), {"content": "left"}, base, strategy=Merge())
    assert isinstance(merged, Merged)
    now = await row(local, "a")
    assert merged.row == now
    assert (now["content"], now["tags"], now["importance"]) == ("left", "rival 0", 2)


async def test_one_that_loses_each_time_is_notified_in_the_end_and_has_changed_nothing(
    local: MeshNode,
) -> None:
    base, _ = await overtaken(local, "a")
    moving(local, 100, {"content": "rival"})
    for strategy in (TakeLeft(), Manual(), Merge(Manual())):
        with pytest.raises(Contended, match='"a"'):
            await local.occ.write(MEMORIES, at("a"), {"content": "left"}, base, strategy=strategy, tries=3)
    with pytest.raises(Contended):
        await local.occ.update(MEMORIES, at("a"), lambda now: {"content": "left"}, tries=3)
    assert (await row(local, "a"))["content"].startswith("rival")
    assert await local.conflicts.list() == []
    assert local.occ.counts == {(MEMORIES, "given up"): 3, (MEMORIES, "retried"): 3}


async def test_an_update_that_returns_nothing_writes_nothing(local: MeshNode) -> None:
    made = await memory(local, "a", content="one")
    assert await local.occ.update(MEMORIES, at("a"), lambda now: None) is None
    assert await row(local, "a") == made


async def test_an_update_may_change_the_row_it_is_given(local: MeshNode) -> None:
    await memory(local, "a", content="one")

    def grow(now: dict[str, Any] | None) -> dict[str, Any]:
        assert now is not None
        now["content"] += " more"
        return now

    assert isinstance(await local.occ.update(MEMORIES, at("a"), grow), Written)
    assert (await row(local, "a"))["content"] == "one more"


# --- who writes --------------------------------------------------------------------------------------


async def test_a_node_whose_clock_is_off_writes_nothing(tmp_path: Path) -> None:
    off = Dependencies(wall_ms=lambda: Dependencies().wall_ms() + 120_000)
    async with Mesh.open(MEMORY.settings(tmp_path, None, tick="1h"), off) as mesh:
        with pytest.raises(ClockOff):
            await mesh.occ.write(MEMORIES, at("a"), {"content": "x"}, None)
        assert await mesh.occ.read(MEMORIES, at("a")) is None


async def test_two_commands_at_one_moment_write_different_versions(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None)
    still = Dependencies(elapsed=lambda: 1_000.0)
    async with Mesh.open_command(settings, still) as one, Mesh.open_command(settings, still) as two:
        two.clock._ahead_ms = one.clock._ahead_ms
        times = []
        for name, mesh in (("a", one), ("b", two)):
            times.append(Hlc.parse((await memory(mesh, name, content="x"))["written_at"]))
        assert times[0][:2] == times[1][:2]
        assert times[0].author != times[1].author
        outcome = await two.occ.write(MEMORIES, at("a"), {}, None, strategy=Manual())
        assert isinstance(outcome, ConflictRecorded)
        assert (await two.conflicts.find(outcome.conflict_id)).right_node == one.identity.node_id


async def test_an_agent_is_notified_of_what_is_deferred_to_it_and_its_silence_undoes_nothing(
    local: MeshNode, caplog: pytest.LogCaptureFixture
) -> None:
    outcome: list[Conflict] = []

    async def notify(conflict: Conflict) -> None:
        outcome.append(conflict)
        raise ConnectionError

    local.occ._notify = notify
    for strategy in (DeferToAgent("judge"), Manual()):
        base, _ = await overtaken(local, str(strategy))
        await local.occ.write(MEMORIES, at(str(strategy)), {"content": "left"}, base, strategy=strategy)
    recorded = await local.conflicts.list()
    assert outcome == recorded[:1]
    assert len(recorded) == 2
    assert "conflict notification failed: agent=judge" in caplog.text
