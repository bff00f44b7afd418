"""Phrases: whatever an agent does, it ends in time, with its fallback, its status and its cost recorded."""

from __future__ import annotations

import asyncio
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.rhythm.phrase_stage import A_MS, BEAT_MS, STAYS, TASK, Stage, for_ever, played, score
from tools.homes import MESH
from tools.sqld import Server
from vox_mesh import Mesh
from vox_mesh.errors import (
    BadScore,
    BadValue,
    OverBudget,
    PhaseOverrun,
    ThreadClosed,
    WaitExhausted,
)
from vox_mesh.model.rhythm.score import Score
from vox_mesh.rhythm.phrases.phrase import Phrase

PATIENCE_S = 60.0
FALLS_BACK = {"on_wait_exhausted": ["emit:needs-attention", "fallback:coarse-answer"]}


# --- as it should go ---------------------------------------------------------------------------------


def test_a_phrase_is_played_phase_by_phase_and_recorded_with_what_it_cost() -> None:
    async def scenario(here: Stage) -> None:
        async with here.phrase(score(), task=TASK) as phrase:
            async with phrase.plan() as plan:
                await here.beats(1)
            async with phrase.work() as work:
                assert work.beats_left == pytest.approx(4)
                await here.beats(2)
                phrase.useful()
                phrase.progress(0.5, "half of it")
                assert await phrase.wait_for(asyncio.sleep(BEAT_MS / 1_000, "read"), budget="io") == "read"
            async with phrase.review():
                await here.beats(0.5)
            phrase.result = "an answer"
        assert not plan.overran
        assert phrase.result == "an answer"
        end = await here.assert_recorded(phrase, "done", "done")
        assert end["beats"] == pytest.approx({"plan": 1, "work": 3, "review": 0.5}, abs=A_MS)
        assert end["waited"] == pytest.approx({"help": 0, "io": 1}, abs=A_MS)
        assert (end["bu"], end["overruns"], end["attempt"]) == (pytest.approx(4.5, abs=A_MS), 0, 1)
        assert end["first_useful_ms"] == pytest.approx(end["began_ms"] + 3 * BEAT_MS, abs=2)
        states = [state for state, _ in groupby(state for state, _ in await here.claims())]
        assert states == ["planning", "executing", "waiting", "done"]  # the last of each beat

    played(scenario)


def test_a_phase_that_begins_late_has_only_what_is_left_of_it() -> None:
    async def scenario(here: Stage) -> None:
        async with here.phrase(score(escalation=STAYS), task=TASK) as phrase:
            await here.beats(5)
            async with phrase.work() as late:
                assert late.beats_left == pytest.approx(1, abs=A_MS)
                await for_ever()
            async with phrase.plan() as over:
                await asyncio.sleep(0)
                raise AssertionError("its end was over before it began")
            async with phrase.review() as review:
                await here.beats(1)
        assert (late.overran, over.overran, review.overran) == (True, True, False)
        end = await here.assert_recorded(phrase, "degraded", "done")
        assert end["beats"] == pytest.approx({"plan": 0, "work": 1, "review": 1, "between": 5}, abs=A_MS)
        assert end["overruns"] == 2

    played(scenario)


def test_a_phase_that_begins_early_does_not_get_more_beats() -> None:
    async def scenario(here: Stage) -> None:
        async with here.phrase(score(escalation=STAYS), task=TASK) as phrase:
            async with phrase.work() as work:
                await for_ever()
            async with phrase.work() as again:
                await for_ever()
        assert work.overran
        assert again.overran
        assert (await here.ends())[0]["beats"]["work"] == pytest.approx(4, abs=A_MS)

    played(scenario)


def test_a_phrase_may_wait_for_the_downbeat() -> None:
    async def scenario(here: Stage) -> None:
        async with here.phrase(task="one", start="downbeat") as on_time:
            await here.beats(0.5)
        async with here.phrase(task="two", start="downbeat") as waited:
            pass
        bar = here.ground.timeline.window_at(on_time.began_ms)
        assert on_time.began_ms - bar.start_ms < BEAT_MS
        assert waited.began_ms - bar.end_ms in (0, 1)

    played(scenario)


# --- waiting -----------------------------------------------------------------------------------------


def test_an_agent_that_waits_forever_ends_with_its_fallback_its_status_and_its_cost() -> None:
    async def scenario(here: Stage) -> None:
        fallbacks = {"coarse-answer": lambda: asyncio.sleep(BEAT_MS / 1_000, "coarse")}
        waiting = asyncio.ensure_future(for_ever())
        phrase = here.phrase(score(escalation=FALLS_BACK), task=TASK, fallbacks=fallbacks)
        async with phrase, phrase.work():
            await phrase.wait_for(waiting, wait_for=["hmmm://thread/abc"])
            raise AssertionError("it was waited without success")
        assert waiting.cancelled()
        assert phrase.result == "coarse"
        end = await here.assert_recorded(phrase, "degraded", "done")
        assert end["waited"]["help"] == pytest.approx(2, abs=A_MS)
        assert end["beats"] == pytest.approx({"plan": 0, "work": 2, "review": 0, "fallback": 1}, abs=A_MS)
        assert end["note"] == "help exhausted; needs-attention sent; fallback coarse-answer"
        (raised,) = await here.node.messages.inbox("needs-attention")
        assert (raised.msg_type, raised.sender_agent) == ("needs-attention", "ada")
        assert raised.body == {"agent": "ada", "task": TASK, "phrase": phrase.phrase_id, "budget": "help"}

    played(scenario)


def test_while_it_waits_it_says_for_what_and_how_long() -> None:
    async def scenario(here: Stage) -> None:
        async with here.phrase(score(), task=TASK) as phrase, phrase.work():
            waiting = asyncio.create_task(phrase.wait_for(here.beats(1.5), wait_for=["hmmm://thread/abc"]))
            await here.beats(0.5)
            await here.status.flush()
            (row,) = await here.node.store.read("SELECT state, wait_for, beats_left FROM status_claims")
            assert tuple(row) == ("waiting", '["hmmm://thread/abc"]', 2)
            await waiting

    played(scenario)


def test_without_a_function_the_caller_is_notified_what_to_fall_back_on() -> None:
    async def scenario(here: Stage) -> None:
        with pytest.raises(WaitExhausted, match=r"wait budget io .* exhausted") as raised:
            async with here.phrase(score(escalation=FALLS_BACK), task=TASK) as phrase:
                await phrase.wait_for(for_ever(), budget="io")
        assert (raised.value.budget, raised.value.fallback) == ("io", "coarse-answer")
        end = await here.assert_recorded(phrase, "failed", "failed")
        assert end["beats"]["between"] == pytest.approx(1, abs=A_MS)

    played(scenario)


def test_a_fallback_that_fails_or_takes_too_long_hides_nothing() -> None:
    async def scenario(here: Stage) -> None:
        async def fails() -> None:
            raise ValueError("no")

        for fallback in (fails, for_ever):
            with pytest.raises(WaitExhausted):
                async with here.phrase(
                    score(escalation=FALLS_BACK), task=TASK, fallbacks={"coarse-answer": fallback}
                ) as phrase:
                    await phrase.wait_for(for_ever())
            end = await here.assert_recorded(phrase, "failed", "failed")
            assert "fallback coarse-answer failed" in end["note"]
            assert end["bu"] <= 8 + A_MS

    played(scenario)


def test_a_wait_budget_is_one_for_the_whole_phrase_and_parts_of_beats_count() -> None:
    async def scenario(here: Stage) -> None:
        async with here.phrase(score(), task=TASK) as phrase:
            async with phrase.plan():
                await phrase.wait_for(here.beats(0.75))
            async with phrase.work():
                both = [phrase.wait_for(here.beats(0.5)), phrase.wait_for(here.beats(0.5))]
                await asyncio.gather(*both)  # at the same time: that is waited once
                with pytest.raises(WaitExhausted):
                    await phrase.wait_for(here.beats(0.8))
        assert (await here.ends())[0]["waited"]["help"] == pytest.approx(2, abs=2 * A_MS)

    played(scenario)


def test_waiting_ends_with_its_phase_and_that_is_no_overrun() -> None:
    async def scenario(here: Stage) -> None:
        async with here.phrase(score(), task=TASK) as phrase:
            async with phrase.plan() as plan:
                await here.beats(1)
                with pytest.raises(WaitExhausted):
                    await phrase.wait_for(for_ever())
            assert not plan.overran
        end = await here.assert_recorded(phrase, "degraded", "done")
        assert end["waited"]["help"] == pytest.approx(1, abs=A_MS)

    played(scenario)


def test_an_error_of_what_is_waited_for_is_raised_unchanged() -> None:
    async def scenario(here: Stage) -> None:
        async def fails() -> None:
            raise LookupError("gone")

        with pytest.raises(LookupError, match="gone"):
            async with here.phrase(task=TASK) as phrase:
                await phrase.wait_for(fails())
        end = await here.assert_recorded(phrase, "failed", "failed")
        assert end["note"] == "LookupError: gone"

    played(scenario)


# --- help --------------------------------------------------------------------------------------------


def test_an_agent_whose_helper_keeps_its_promise_has_the_answer() -> None:
    async def scenario(here: Stage) -> None:
        async def helper() -> None:
            async for message in here.node.messages.receive("bob"):
                await here.help.promise(message, promise_beats=1, fail_after_beats=2)
                await here.beats(0.5)
                await here.help.answer(message, "yes")

        helping = asyncio.create_task(helper())
        async with here.phrase(score(), task=TASK) as phrase, phrase.work():
            assert (await phrase.ask_help("bob", "is it so?")).body == "yes"
        helping.cancel()
        await asyncio.gather(helping, return_exceptions=True)
        end = await here.assert_recorded(phrase, "done", "done")
        assert end["waited"]["help"] == pytest.approx(0.5, abs=0.1)

    played(scenario)


def test_an_agent_whose_helper_breaks_its_promise_ends_with_what_the_promise_named() -> None:
    async def scenario(here: Stage) -> None:
        async def helper() -> None:
            async for message in here.node.messages.receive("bob"):
                await here.help.promise(message, promise_beats=1, fail_after_beats=1, on_fail="plan-a")

        helping = asyncio.create_task(helper())
        fallbacks = {"plan-a": lambda: "by plan A", "coarse-answer": lambda: "coarse"}
        given = score(escalation=FALLS_BACK)
        async with here.phrase(given, task=TASK, fallbacks=fallbacks) as phrase, phrase.work():
            await phrase.ask_help("bob", "is it so?")
        helping.cancel()
        await asyncio.gather(helping, return_exceptions=True)
        assert phrase.result == "by plan A"
        end = await here.assert_recorded(phrase, "degraded", "done")
        assert 1 <= end["waited"]["help"] < 2
        rows = await here.node.store.read("SELECT state, task_id FROM help_threads")
        assert [tuple(row) for row in rows] == [("expired", TASK)]

    played(scenario)


def test_no_promise_by_the_end_of_the_bar_is_a_wait_without_success() -> None:
    async def scenario(here: Stage) -> None:
        await here.beats(6.5)
        with pytest.raises(WaitExhausted) as raised:
            async with here.phrase(score(), task=TASK) as phrase, phrase.work():
                await phrase.ask_help("bob", "is it so?")
        assert isinstance(raised.value.__cause__, ThreadClosed)
        assert (await here.ends())[0]["waited"]["help"] == pytest.approx(1.5, abs=0.1)

    played(scenario)


# --- its end -----------------------------------------------------------------------------------------


def test_a_cancelled_phrase_is_recorded_as_failed() -> None:
    async def scenario(here: Stage) -> None:
        phrase = here.phrase(task=TASK)

        async def agent() -> None:
            async with phrase, phrase.work():
                await phrase.wait_for(for_ever())

        playing = asyncio.create_task(agent())
        await here.beats(1)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        end = await here.assert_recorded(phrase, "failed", "failed")
        assert end["note"] == "cancelled"

    played(scenario)


def test_the_error_of_the_body_is_not_lost_when_the_end_can_not_be_written() -> None:
    async def scenario(here: Stage) -> None:
        phrase = here.phrase(task=TASK)

        async def agent() -> None:
            async with phrase:
                await here.node.store.close()
                raise LookupError("gone")

        with pytest.raises(LookupError, match="gone"):
            await agent()
        assert phrase.outcome == "failed"

    played(scenario)


async def test_while_the_database_is_away_the_end_of_a_phrase_waits_in_the_spool(
    tmp_path: Path, server: Server
) -> None:
    async with asyncio.timeout(PATIENCE_S), Mesh.open(MESH.settings(tmp_path, server)) as node:
        phrase = node.rhythm.phrase(task=TASK)

        async def agent() -> None:
            async with phrase:
                server.kill()
                raise LookupError("gone")

        with pytest.raises(LookupError, match="gone"):
            await agent()
        await asyncio.to_thread(server.start)
        async for change in node.store.watch("SELECT phrase_id, outcome, note FROM phrase_ends"):
            if change.rows:
                break
        assert [tuple(row) for row in change.rows] == [(phrase.phrase_id, "failed", "LookupError: gone")]


def test_a_phrase_is_used_as_it_is_meant() -> None:
    async def scenario(here: Stage) -> None:
        with pytest.raises(BadValue, match="task must be"):
            here.phrase(task="")
        phrase = here.phrase(task=TASK)
        with pytest.raises(BadValue, match="phrase is not running"):
            phrase.progress(0.1)
        async with phrase:
            with pytest.raises(BadValue, match="entered before"):
                await phrase.__aenter__()
            with pytest.raises(BadValue, match="wait budget must be"):
                await phrase.wait_for(for_ever(), budget="coffee")
            with pytest.raises(BadValue, match="progress"):
                phrase.progress(2)
            async with phrase.plan():
                with pytest.raises(BadValue, match="work can't begin: plan has not ended"):
                    async with phrase.work():
                        pass
        assert phrase.outcome == "done"
        with pytest.raises(BadValue, match="phrase is not running"):
            await phrase.wait_for(for_ever())
        await asyncio.sleep(0)  # in which what it was to wait for ends

    played(scenario)


def test_a_score_may_come_from_a_file_with_its_budget(tmp_path: Path) -> None:
    text = "score:\n  bar_len: 4\n  phases: {plan: 1, work: 2, review: 1}\nbudget: {max_bu: 2}\n"
    (tmp_path / "ingest.yaml").write_text(text)

    async def scenario(here: Stage) -> None:
        for way in (tmp_path / "ingest.yaml", str(tmp_path / "ingest.yaml"), text):
            phrase = here.phrase(way, task=TASK)
            assert phrase.beats == {"plan": 1, "work": 2, "review": 1}
            with pytest.raises(OverBudget):
                async with phrase:
                    await for_ever()
        with pytest.raises(BadScore):
            here.phrase("score: {tempo: slow}", task=TASK)
        with pytest.raises(BadValue, match="can't be read"):
            here.phrase(tmp_path / "nothing.yaml", task=TASK)

    played(scenario)


# --- whatever an agent does --------------------------------------------------------------------------

BEATS = st.integers(0, 24).map(lambda quarters: quarters / 4)
ACTS = st.one_of(
    st.tuples(st.just("sleep"), BEATS),
    st.tuples(st.sampled_from(["help", "io"]), BEATS),
    st.tuples(st.just("fail"), st.just(0.0)),
)
PHASES = st.lists(
    st.tuples(st.sampled_from(["plan", "work", "review", "none"]), st.lists(ACTS, max_size=3)), max_size=5
)


@st.composite
def scores(draw: st.DrawFn) -> Score:
    beats = {phase: draw(st.integers(1, 4)) for phase in ("plan", "work", "review")}
    exhausted = draw(st.lists(st.sampled_from(["emit:look-here", "fallback:rest"]), unique=True))
    overrun = draw(st.lists(st.sampled_from(["checkpoint", "defer:next-phrase"]), unique=True))
    document: dict[str, Any] = {
        "bar_len": sum(beats.values()),
        "phases": beats,
        "wait_budget": {"help": draw(st.integers(0, 4)), "io": draw(st.integers(0, 2))},
        "retry": {"max_phrases": draw(st.integers(1, 3))},
        "escalation": {"on_wait_exhausted": exhausted, "on_overrun": overrun},
    }
    return Score.of_document(document)


class Fails(Exception):
    """What an agent may end in."""


async def act(here: Stage, phrase: Phrase, acts: list[tuple[str, float]], stubborn: bool) -> None:
    for name, beats in acts:
        if name == "fail":
            raise Fails
        try:
            if name == "sleep":
                await here.beats(beats)
            else:
                await phrase.wait_for(here.beats(beats), budget=name)
        except WaitExhausted:
            if not stubborn:
                raise


@settings(max_examples=60)
@given(
    given_score=scores(),
    course=PHASES,
    stubborn=st.booleans(),
    fallback=st.one_of(st.none(), BEATS),
    max_bu=st.one_of(st.none(), BEATS),
    before=BEATS,
)
def test_no_agent_uses_more_than_its_phrase_nor_waits_more_than_its_budgets(
    given_score: Score,
    course: list[tuple[str, list[tuple[str, float]]]],
    stubborn: bool,
    fallback: float | None,
    max_bu: float | None,
    before: float,
) -> None:
    async def agent(here: Stage) -> None:
        fallbacks = {} if fallback is None else {"rest": lambda: here.beats(fallback)}
        budget = {} if max_bu is None else {"max_bu": max_bu}
        playing = here.phrases(
            given_score, task=TASK, fallbacks=fallbacks, budget=budget, state=lambda: course
        )
        async for phrase in playing:
            async with phrase:
                for name, acts in course:
                    if name == "none":
                        await act(here, phrase, acts, stubborn)
                    else:
                        async with getattr(phrase, name)():
                            await act(here, phrase, acts, stubborn)

    async def scenario(here: Stage) -> None:
        await here.beats(before)
        known = (Fails, WaitExhausted, PhaseOverrun, OverBudget)
        result = (await asyncio.gather(agent(here), return_exceptions=True))[0]
        assert result is None or isinstance(result, known), result
        ends = await here.ends()
        assert [end["attempt"] for end in ends] == list(range(1, len(ends) + 1))
        assert len(ends) <= given_score.retry.max_phrases
        assert all(end["outcome"] == "deferred" for end in ends[:-1])
        assert ends[-1]["outcome"] in (("done", "degraded") if result is None else ("failed",))
        assert (await here.claims())[-1][0] == ("done" if result is None else "failed")
        slack = 4 * A_MS
        for end in ends:
            beats = given_score.attempt(end["attempt"])
            length = here.ground.timeline.beats_between(end["began_ms"], end["ended_ms"])
            assert length <= sum(beats.values()) + slack
            assert end["bu"] == pytest.approx(length, abs=slack)
            assert all(end["beats"][phase] <= beats[phase] + slack for phase in beats)
            assert end["waited"]["help"] <= given_score.wait_budget.help + slack
            assert end["waited"]["io"] <= given_score.wait_budget.io + slack
        if max_bu is not None:
            assert sum(end["bu"] for end in ends) <= 1.25 * max_bu + slack * len(ends)

    played(scenario)
