"""The combiner: one request under way, the queue behind it, and what callers get."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.running.examples import many
from tests.support.store.combining import LONG_S, Combining, adding, combining, outcome
from vox_mesh import Outcome, Script, Statement, run
from vox_mesh.errors import (
    BadStatement,
    ConstraintFailed,
    DatabaseBusy,
    NoAnswer,
    OutcomeUnknown,
    Overloaded,
    StoreClosed,
    Unreachable,
)
from vox_mesh.store.batch import Batch, BatchResult, StepError

SHORT_S = 0.05


def is_isolated(batch: Batch) -> bool:
    """Whether each script of the batch has a savepoint of its own."""
    return any(step.sql.startswith("SAVEPOINT") for step in batch.steps)


async def test_one_request_is_under_way_and_what_queued_goes_together() -> None:
    async with combining() as c:
        first = await c.busy()
        rest = [c.send(adding(number)) for number in range(1, 13)]
        await c.queued(12)
        assert len(c.gate.batches) == 1
        c.gate.release()
        await asyncio.gather(first, *rest)
        assert len(c.gate.batches) == 2
        assert await c.ids() == list(range(13))


def test_a_deadline_that_has_passed_keeps_no_one_else_from_writing() -> None:
    async def play() -> None:
        async with combining() as c:
            first = await c.busy()
            late = [c.send(adding(number), timeout=0.0) for number in (1, 2)]
            rest = c.send(adding(3))
            for task in late:
                with pytest.raises(Overloaded):
                    await task
            c.gate.release()
            await asyncio.gather(first, rest)
            assert await c.ids() == [0, 3]

    run(play())  # on the loop that nodes have, where a timer that is due at once is none


async def test_a_request_takes_no_more_scripts_than_the_engine_likes() -> None:
    async with combining(max_scripts=8) as c:
        first = await c.busy()
        rest = [c.send(adding(number)) for number in range(1, 21)]
        await c.queued(20)
        c.gate.release()
        await asyncio.gather(first, *rest)
        assert len(c.gate.batches) == 1 + 3
        assert await c.ids() == list(range(21))


async def test_large_scripts_do_not_pile_up_in_one_request() -> None:
    async with combining() as c:
        first = await c.busy()
        large = [Script(Statement("INSERT INTO t (a) VALUES (?)", (b"x" * 700_000,))) for _ in range(3)]
        rest = [c.send(script) for script in large]
        await c.queued(3)
        c.gate.release()
        await asyncio.gather(first, *rest)
        assert len(c.gate.batches) == 1 + 3


@pytest.mark.parametrize("home", ["memory", "file"])
async def test_a_lost_answer_is_asked_for_again_and_takes_effect_once(home: str, tmp_path: Path) -> None:
    async with combining(tmp_path / "x.db" if home == "file" else None) as c:
        c.gate.after.extend([NoAnswer("lost"), NoAnswer("lost again")])
        end = outcome(await c.send(adding(1)))
        assert (end.rows.value, end.repeated) == (1, True)
        assert await c.ids() == [1]
        optimistic = [batch for batch in c.gate.batches if not is_isolated(batch)]
        assert len(optimistic) == 3
        assert all(batch is optimistic[0] for batch in optimistic)


async def test_a_lost_request_is_sent_again_as_it_was() -> None:
    async with combining() as c:
        c.gate.before.extend([Unreachable("no route"), NoAnswer("cut")])
        end = outcome(await c.send(adding(1)))
        assert (end.rows.value, end.repeated) == (1, False)
        assert len(c.gate.batches) == 3
        assert all(batch is c.gate.batches[0] for batch in c.gate.batches)


async def test_all_of_a_request_whose_answer_was_lost_end_as_they_did_the_first_time() -> None:
    async with combining() as c:
        first = await c.busy()
        rest = [c.send(adding(number)) for number in (1, 2, 1, 3)]
        await c.queued(4)
        # The first request is answered; of the second, the optimistic try rolls back, the isolated one
        # takes effect and its answer is lost.
        c.gate.after.extend([NoAnswer("lost"), NoAnswer("lost"), NoAnswer("lost")])
        c.gate.release()
        assert outcome(await first).rows.value == 1
        ends = [(await each)[0] for each in rest]
        values = [end.rows.value if isinstance(end, Outcome) else type(end) for end in ends]
        assert values == [2, 3, ConstraintFailed, 4]
        assert await c.ids() == [0, 1, 2, 3]


async def test_a_deadline_that_passes_under_way_leaves_the_outcome_unknown() -> None:
    async with combining() as c:
        c.gate.hold()
        script = adding(1)
        with pytest.raises(OutcomeUnknown) as unknown:
            await c.send(script, timeout=SHORT_S)
        assert unknown.value.key == script.key
        c.gate.release()
        outcome(await c.send(script))
        assert await c.ids() == [1]


async def test_after_an_unknown_outcome_the_same_key_tells() -> None:
    async with combining() as c:
        script = adding(1)
        c.gate.after.extend(NoAnswer("lost") for _ in range(10_000))
        with pytest.raises(OutcomeUnknown):
            await c.send(script, timeout=SHORT_S)
        c.gate.after.clear()
        again = outcome(await c.send(script))
        assert again.repeated
        assert await c.ids() == [1]


async def test_a_request_whose_copy_came_first_is_not_reported_as_unsent() -> None:
    async with combining() as c:
        script = adding(1)
        c.gate.doubled = 1
        c.gate.before.extend([None, *(Unreachable("no route") for _ in range(10_000))])
        with pytest.raises(OutcomeUnknown):
            await c.send(script, timeout=SHORT_S)
        c.gate.before.clear()
        assert outcome(await c.send(script)).repeated
        assert await c.ids() == [1]


@pytest.mark.parametrize("others", [(), (0,)], ids=["alone", "next to one that fails"])
async def test_a_commit_that_failed_may_yet_be_found_applied(
    others: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with combining() as c:
        await c.send(adding(0))
        run, script = c.gate.run, adding(1)

        async def fail_to_commit(batch: Batch) -> BatchResult:
            result = await run(batch)
            if not result.committed:
                return result
            *steps, _, end = result.steps
            return BatchResult([*steps, StepError("SQLITE_FULL", "database or disk is full"), end])

        monkeypatch.setattr(c.combiner._sender, "_run", fail_to_commit)
        with pytest.raises(OutcomeUnknown, match="disk is full"):
            await c.send(script, *map(adding, others))
        monkeypatch.undo()
        assert outcome(await c.send(script)).repeated
        assert await c.ids() == [0, 1]


async def test_an_unreachable_database_is_reported_as_such_since_nothing_was_sent() -> None:
    async with combining() as c:
        c.gate.before.extend([Unreachable("no route")] * 1_000_000)
        with pytest.raises((Unreachable, OutcomeUnknown)):
            await c.send(adding(1), timeout=SHORT_S)
        c.gate.before.clear()
        assert await c.ids() == []


async def test_a_deadline_that_passes_in_the_queue_has_no_effect() -> None:
    async with combining() as c:
        first = await c.busy()
        with pytest.raises(Overloaded):
            await c.send(adding(1), timeout=SHORT_S)
        c.gate.release()
        await first
        await c.send(adding(2))
        assert await c.ids() == [0, 2]


async def test_late_callers_do_not_take_those_in_time_with_them() -> None:
    async with combining() as c:
        first = await c.busy()
        late, in_time = c.send(adding(1), timeout=SHORT_S), c.send(adding(2))
        with pytest.raises(Overloaded):
            await late
        c.gate.release()
        await asyncio.gather(first, in_time)
        assert await c.ids() == [0, 2]


async def test_a_full_queue_makes_callers_wait_and_then_turns_them_away() -> None:
    async with combining(max_queued=2) as c:
        first = await c.busy()
        queued = [c.send(adding(number)) for number in (1, 2)]
        await c.queued(2)
        with pytest.raises(Overloaded):
            await c.send(adding(3), timeout=SHORT_S)
        patient = [c.send(adding(number)) for number in (4, 5, 6, 7, 8)]
        c.gate.release()
        await asyncio.gather(first, *queued, *patient)
        assert await c.ids() == [0, 1, 2, 4, 5, 6, 7, 8]


async def test_a_caller_that_gives_up_waiting_for_room_harms_no_one() -> None:
    async with combining(max_queued=1) as c:
        first = await c.busy()
        queued = c.send(adding(1))
        await c.queued(1)
        waiting = [c.send(adding(number)) for number in (2, 3, 4)]
        await asyncio.sleep(0)
        # In the moment when there is room: cancelled, but not yet woken.
        c.gate.release()
        waiting[0].cancel()
        await asyncio.wait_for(asyncio.gather(first, queued, *waiting[1:]), 10)
        assert await c.ids() == [0, 1, 3, 4]


async def test_cancelled_before_it_was_taken_a_script_is_not_sent() -> None:
    async with combining() as c:
        first = await c.busy()
        cancelled, neighbour = c.send(adding(1)), c.send(adding(2))
        await c.queued(2)
        cancelled.cancel()
        c.gate.release()
        await asyncio.gather(first, neighbour)
        assert await c.ids() == [0, 2]


async def test_cancelled_after_it_was_taken_a_script_takes_effect_with_its_neighbours() -> None:
    async with combining() as c:
        await c.busy()
        cancelled, neighbour = c.send(adding(1)), c.send(adding(2))
        await c.queued(2)
        c.gate.release_one()
        await c.gate.arrival()
        cancelled.cancel()
        c.gate.release()
        assert outcome(await neighbour).rows.value == 3
        assert await c.ids() == [0, 1, 2]


async def test_cancelled_at_its_deadline_nothing_is_left_that_no_one_hears() -> None:
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    async with combining() as c:
        c.gate.hold()
        late = c.send(adding(1), timeout=0.0)
        await asyncio.sleep(0)  # now it is under way, and its alarm rings in the next round
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        del late
        gc.collect()
        assert unheard == []


async def test_a_late_caller_does_not_end_a_request_for_the_others() -> None:
    async with combining() as c:
        await c.busy()
        hasty, patient = adding(1), adding(2)
        # The deadline is long enough to be taken and short enough to wait for.
        hasty_end, patient_end = c.send(hasty, timeout=1.0), c.send(patient)
        await c.queued(2)
        c.gate.release_one()
        await c.gate.arrival()
        with pytest.raises(OutcomeUnknown):
            await hasty_end
        c.gate.release()
        assert outcome(await patient_end).rows.value == 3
        # Asked to send it again to learn more, the late one may do so at any time: its key must stay.
        keys = [key for _, key in c.ledger._answered]
        assert patient.key in keys
        assert hasty.key not in keys


async def test_closing_finishes_what_was_submitted() -> None:
    async with combining() as c:
        first = await c.busy()
        rest = [c.send(adding(number)) for number in (1, 2)]
        await c.queued(2)
        closing = asyncio.create_task(c.combiner.close(LONG_S))
        await asyncio.sleep(0)
        with pytest.raises(StoreClosed):
            await c.send(adding(3))
        c.gate.release()
        await asyncio.gather(first, *rest, closing)
        assert await c.ids() == [0, 1, 2]


async def test_closing_does_not_wait_forever_and_tells_everyone() -> None:
    async with combining(max_queued=1) as c:
        first = await c.busy()
        queued = c.send(adding(1))
        await c.queued(1)
        waiting = c.send(adding(2))
        await asyncio.sleep(0)
        await asyncio.wait_for(c.combiner.close(SHORT_S), 10)
        ends = await asyncio.gather(first, queued, waiting, return_exceptions=True)
        expected: list[type] = [OutcomeUnknown, StoreClosed, StoreClosed]
        assert [type(end) for end in ends] == expected


async def test_requests_are_isolated_at_once_while_many_scripts_fail() -> None:
    async with combining() as c:
        assert not await _isolates_at_once(c)
        for _ in range(3):
            await asyncio.gather(*(c.send(adding(1)) for _ in range(10)))
        assert await _isolates_at_once(c)
        for number in range(100, 130):
            await c.send(adding(number))
        assert not await _isolates_at_once(c)


async def test_a_few_scripts_that_fail_among_many_do_not_change_how_others_are_sent() -> None:
    async with combining() as c:
        first = await c.busy()
        rest = [c.send(adding(number)) for number in (*range(1, 18), 1, 2, 3)]
        await c.queued(20)
        c.gate.release()
        await asyncio.gather(first, *rest)
        assert is_isolated(c.gate.batches[-1])
        first = await c.busy(100)
        rest = [c.send(adding(number)) for number in range(101, 106)]
        await c.queued(5)
        c.gate.release()
        await asyncio.gather(first, *rest)
        assert not any(is_isolated(batch) for batch in c.gate.batches[-2:])


async def _isolates_at_once(c: Combining) -> bool:
    """Whether the next request is tried without the optimistic form."""
    c.gate.batches.clear()
    await c.send(Script(Statement("SELECT 1")))
    return is_isolated(c.gate.batches[0])


@many
@given(data=st.data())
async def test_any_interleaving_ends_as_some_order_of_scripts_would(data: st.DataObject) -> None:
    """Scripts that succeed, fail or are cancelled leave what the successful ones and some of the
    cancelled leave one after another.
    """
    kinds = data.draw(st.lists(st.sampled_from(["plain", "clash", "cancel"]), min_size=1, max_size=12))
    async with combining(max_scripts=data.draw(st.integers(1, 5))) as c:
        tasks: list[asyncio.Task[list[Outcome]]] = []
        scripts = []
        for number, kind in enumerate(kinds):
            script = _pair(number if kind != "clash" else data.draw(st.integers(0, number)), number)
            scripts.append(script)
            tasks.append(c.send(script))  # type: ignore[arg-type]
            for _ in range(data.draw(st.integers(0, 4))):
                await asyncio.sleep(0)
            if kind == "cancel":
                tasks[-1].cancel()
            if data.draw(st.booleans()):
                (c.gate.hold if data.draw(st.booleans()) else c.gate.release)()
            if data.draw(st.integers(0, 5)) == 0:
                c.gate.after.append(NoAnswer("lost"))
        c.gate.release()
        ends = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
        rows = await c.gate.query(Statement("SELECT id, a FROM t ORDER BY rowid"))
        applied = [row["a"] for row in rows[::2]]
        assert [row["a"] for row in rows[1::2]] == applied, (
            "a script was applied in part, or not in one piece"
        )
        assert applied == sorted(set(applied)), "out of order, or twice"
        for number, end in enumerate(ends):
            if isinstance(end, asyncio.CancelledError):
                continue
            assert isinstance(end, list), repr(end)
            assert isinstance(end[0], Outcome) is (number in applied)
            if not isinstance(end[0], Outcome):
                assert isinstance(end[0], ConstraintFailed)
                assert any(row["id"] == scripts[number].statements[0].params[0] for row in rows)


def _pair(number: int, author: int) -> Script:
    """Two rows that belong together; the number must be new."""
    sql = "INSERT INTO t (id, a) VALUES (?, ?)"
    return Script(Statement(sql, (number, author)), Statement(sql, (-1 - number, author)))


async def test_sent_again_after_an_unknown_outcome_a_key_is_not_soon_forgotten() -> None:
    async with combining() as c:
        c.gate.hold()
        script = adding(1)
        with pytest.raises(OutcomeUnknown):
            await c.send(script, timeout=0.05)
        c.gate.release()
        await c.send(script)
        # The first sending may still turn up: its key must be there when it does.
        assert script.key not in [key for _, key in c.ledger._answered]


async def test_what_was_applied_before_the_database_went_away_is_not_reported_as_unsent() -> None:
    async with combining() as c:
        await c.busy()
        applied, unlucky = adding(1), adding(2)
        ends = [c.send(applied, timeout=0.5), c.send(unlucky, timeout=0.5)]
        await c.queued(2)
        # Both together can't be read; alone the first is applied, and then nothing answers any more.
        c.gate.before.extend([None, BadStatement("unreadable", statement=0), None])  # type: ignore[list-item]
        c.gate.before.extend([Unreachable("no route")] * 1_000_000)
        c.gate.release()
        for end in ends:
            with pytest.raises(OutcomeUnknown):
                await end
        c.gate.before.clear()
        assert await c.ids() == [0, 1]


async def test_busy_until_the_deadline_is_reported_as_busy_not_as_overloaded() -> None:
    async with combining() as c:
        c.gate.before.extend([DatabaseBusy("another writer")] * 1_000_000)
        with pytest.raises(Unreachable, match="another writer"):
            await c.send(adding(1), timeout=0.05)
        c.gate.before.clear()
