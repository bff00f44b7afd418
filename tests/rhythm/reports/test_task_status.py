"""The status of tasks: the last claim of each, since when it holds, and who is waited for."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from tests.support.messages.messaging import NodeGroup
from tests.support.rhythm.grounds import BAR_MS, BEGIN_MS, ClockedReporter, MovableClock, player
from vox_mesh.errors import BadValue
from vox_mesh.rhythm import task_status
from vox_mesh.rhythm.task_status import StatusQueries, TaskStatus
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script, Statement


@pytest.fixture
async def one(crowd: NodeGroup, hand: MovableClock) -> ClockedReporter:
    """A node whose beats the test ends."""
    return player(await crowd.node("one"), hand)


def queries(one: ClockedReporter) -> StatusQueries:
    """The queries of a node, which has seen nothing before."""
    return StatusQueries(one.ground, one.node.messages.verifier)


async def statuses(one: ClockedReporter, **wanted: Any) -> list[TaskStatus]:
    """What is read of the tasks."""
    return (await queries(one).page(**wanted, fresh=True)).items


async def test_the_last_claim_of_each_task_is_shown_with_its_phase_and_since_when(
    one: ClockedReporter, hand: MovableClock
) -> None:
    one.status.claim("ada", "read", "executing", score="ucxl://lab:any/*/task/read")
    one.status.claim("bob", "write", "planning", notes="outline")
    await one.beat()
    hand.to(0, 2, 100)
    one.status.claim("ada", "read", "waiting", wait_for=["thread:1"], beats_left=3)
    for beat in (2, 3, 4, 9):  # the last is in the next bar
        hand.to(0, beat, 200)
        await one.beat()
    read, write = await statuses(one)
    assert (read.agent_id, read.task_id, read.state, read.phase) == ("ada", "read", "waiting", "work")
    assert (read.wait_for, read.waits_on, read.beats_left) == (("thread:1",), (), 3)
    assert (read.since_ms, read.score) == (BEGIN_MS + 5_100, "ucxl://lab:any/*/task/read")
    assert (read.epoch_ms, read.beat_index, read.node_id) == (BEGIN_MS + BAR_MS, 1, "one")
    assert (write.phase, write.state, write.since_ms, write.notes) == (
        "plan",
        "planning",
        BEGIN_MS,
        "outline",
    )
    hand.to(1, 1, 300)
    one.status.claim("ada", "read", "waiting", wait_for=["thread:2"])
    one.status.claim("bob", "write", "done")
    await one.beat()
    read, write = await statuses(one)
    assert (read.since_ms, write.state) == (hand.now_ms, "done")
    hand.to(3)
    assert [each.task_id for each in await statuses(one)] == []  # there are no claims of the last two bars


async def test_filters_and_pages_select_from_the_tasks(
    one: ClockedReporter, hand: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, state in enumerate(("executing", "waiting", "executing", "done")):
        one.status.claim("ada", f"t{number}", state, score="build" if number % 2 else None)
        one.status.claim("bob", f"t{number}", state)
    await one.beat()
    hand.to(1)
    one.status.claim("ada", "t0", "review")
    await one.status.flush()

    async def found(**wanted: Any) -> list[str]:
        names, after = list[str](), None
        for _ in range(20):
            page = await queries(one).page(**wanted, limit=2, after=after)
            names += [f"{each.agent_id} {each.task_id}" for each in page.items]
            if (after := page.next) is None:
                return names
        raise AssertionError("the pages do not end")

    everything = [f"{agent} t{number}" for agent in ("ada", "bob") for number in range(4)]
    for size in (500, 3):  # of what is looked at for a page
        monkeypatch.setattr(task_status, "MAX_LIMIT", size)
        assert await found() == everything
        assert await found(agent="bob") == everything[4:]
        assert await found(state="executing") == ["ada t2", "bob t0", "bob t2"]
        assert await found(score="build") == ["ada t1", "ada t3"]
        assert await found(agent="ada", state="waiting", score="build") == ["ada t1"]
    with pytest.raises(BadValue, match=r"state must be one of planning, .*, got 'asleep'"):
        await statuses(one, state="asleep", limit=1)
    with pytest.raises(BadValue, match="score must be 1 to"):
        one.status.claim("ada", "t", "done", score="\x1b[2J")


async def test_a_state_that_another_process_claims_again_began_with_the_first_claim(
    one: ClockedReporter, hand: MovableClock
) -> None:
    for beat in (1, 2, 3):
        hand.to(0, beat, 50)
        claim = one.status.claim("ada", "t", "waiting", wait_for=["x"])
        one.status._live.clear()
        one.status.accept(claim, score="build")
        await one.status.flush()
    (status,) = await statuses(one, score="build")
    assert (status.since_ms, status.beat_index) == (BEGIN_MS + 50, 3)


async def test_no_planted_row_stops_the_list_or_hides_the_claims_of_now(
    one: ClockedReporter, hand: MovableClock
) -> None:
    one.status.claim("ada", "t", "executing")
    await one.beat()
    hand.to(0, 2)
    columns = "scope_id, repository_id, window_ms, agent_id, task_id, epoch_ms, beat_index, state, wait_for"
    sql = f"INSERT INTO status_claims ({columns}, began_ms, node_id, hlc, serial) VALUES (?1, ?2, {{}})"
    later = BEGIN_MS + BAR_MS * 9
    for row in (
        f"{later}, 'ada', 't', {later}, 1, 'failed', '[]', 0, 'one', '{later}-00000-one', 100",
        f"{BEGIN_MS}, 'ada', 't', {later}, 1, 'failed', '[]', 0, 'one', '{later}-00000-one', 101",
        f"{BEGIN_MS}, 'eve', x'ff', {BEGIN_MS}, 1, 'done', '[]', 0, 'one', '1-00000-one', 102",
        f"{BEGIN_MS}, 'eve', 'a', {BEGIN_MS}, 1, 'done', 'no', 0, 'one', '1-00000-one', 103",
        f"{BEGIN_MS}, 'eve', 'b', {BEGIN_MS}, 1, 'done', '[]', 0, x'ff', 'never', 104",
        f"{BEGIN_MS}, 'eve', CAST(x'ff41' AS TEXT), {BEGIN_MS}, 1, 'done', '[]', 0, 'one', 'x', 105",
    ):
        await one.node.store.write(Script(Statement(sql.format(row), one.ground.mesh)))
    (status,) = await statuses(one)
    assert (status.agent_id, status.state) == ("ada", "executing")


FORGED: Final = (
    *("state = 'failed'", "notes = 'give up'", "wait_for = '[\"eve\"]'", "since_ms = since_ms - 1"),
    *("phase = 'review'", "score = 'other'", "progress = 0.9", "agent_id = 'eve'", "task_id = 'other'"),
    *("batch = batch + 1", "batch = NULL", "node_id = 'two'", "beats_left = 3", "epoch_ms = epoch_ms + 1"),
)


async def test_a_claim_that_its_node_has_not_signed_is_not_shown(one: ClockedReporter) -> None:
    for number in range(len(FORGED)):
        one.status.claim(f"ada-{number}", "t", "executing", progress=1 / 3, score="build")
    one.status.claim("bob", "t", "executing")
    await one.beat()
    for number, change in enumerate(FORGED):
        sql = (
            f"UPDATE status_claims SET {change} WHERE scope_id = ?1 AND repository_id = ?2 AND agent_id = ?3"
        )
        await one.node.store.write(Script(Statement(sql, (*one.ground.mesh, f"ada-{number}"))))
    page = await queries(one).page()
    assert ([each.agent_id for each in page.items], page.forged) == (["bob"], len(FORGED) - 1)


async def test_no_other_key_signs_for_a_node_and_no_old_claim_is_shown_as_new(
    crowd: NodeGroup, one: ClockedReporter, hand: MovableClock
) -> None:
    two = player(await crowd.node("two"), hand)
    one.status.claim("ada", "t", "executing")
    await one.beat()
    one.status._live.clear()
    mesh = "scope_id = ?1 AND repository_id = ?2"

    async def forge(sql: str) -> None:
        await one.node.store.write(Script(Statement(sql, one.ground.mesh)))

    await forge(f"UPDATE status_claims SET window_ms = window_ms + {3 * BAR_MS} WHERE {mesh}")
    hand.to(3, 2)
    assert await statuses(one) == []
    two.status.claim("ada", "t", "waiting")
    await two.beat()
    (status,) = await statuses(one)
    assert (status.node_id, status.state) == ("two", "waiting")
    await forge(f"UPDATE status_claims SET node_id = 'one' WHERE {mesh}")
    await forge(f"UPDATE status_signatures SET node_id = 'one' WHERE {mesh} AND node_id = 'two'")
    assert await statuses(one) == []


async def test_no_claim_of_an_earlier_bar_is_looked_at(one: ClockedReporter) -> None:
    values = (*queries(one).bounds(), "", "", "~", 10)
    rows = await one.node.store.read(f"EXPLAIN QUERY PLAN {named('task_status')['listed']}", values)
    plan = [row[3] for row in rows]
    claims = [line for line in plan if "status_claims" in line]
    assert len([line for line in claims if "window_ms=?" in line and "(agent_id,task_id)>(?,?)" in line]) == 3
    assert not [line for line in plan if re.match(r"SCAN (status_claims|t|m)\b", line)], plan
    assert not [line for line in plan if "TEMP B-TREE FOR GROUP BY" in line], plan
    overview = named("overview")["overview"]
    rows = await one.node.store.read(f"EXPLAIN QUERY PLAN {overview}", ["[]"] * 14)
    assert not [row[3] for row in rows if re.match(r"SCAN status_claims\b", row[3])]
    signatures = named("task_status")["signatures"]
    rows = await one.node.store.read(f"EXPLAIN QUERY PLAN {signatures}", ["[]"] * 3)
    assert [row[3] for row in rows if "status_signatures" in row[3] and "batch=? AND node_id=?" in row[3]]
