"""Phrases of agents that do what they should not: each ends in time, recorded, and nothing is left of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.rhythm.phrase_stage import A_MS, BEAT_MS, STAYS, TASK, Stage, for_ever, played, score
from vox_mesh.errors import DatabaseUnavailable, PhraseDeferred, WaitExhausted
from vox_mesh.rhythm.phrases.phrase import Phrase
from vox_mesh.store.script import Script, Statement

FALLS_BACK = {"on_wait_exhausted": ["emit:needs-attention", "fallback:coarse"]}


async def will_not_end() -> None:
    while True:
        try:
            await for_ever()
        except asyncio.CancelledError:
            await asyncio.sleep(BEAT_MS / 1_000)
            return


def raises() -> None:
    raise ValueError("no state")


async def plays(phrase: Phrase, *, within_a_phase: bool) -> None:
    async with phrase:
        if not within_a_phase:
            await for_ever()
        async with phrase.work():
            await for_ever()


# --- what tells the state ----------------------------------------------------------------------------


@pytest.mark.parametrize("state", [for_ever, raises, lambda: object()], ids=["hangs", "raises", "no JSON"])
@pytest.mark.parametrize("within_a_phase", [True, False])
def test_a_state_that_hangs_or_fails_neither_keeps_a_phrase_nor_hides_its_end(
    state: Callable[[], Any], within_a_phase: bool
) -> None:
    async def scenario(here: Stage) -> None:
        phrase = here.phrase(score(), task=TASK, state=state)
        with pytest.raises(PhraseDeferred):
            await plays(phrase, within_a_phase=within_a_phase)
        end = await here.assert_recorded(phrase, "deferred", "failed")
        assert "a checkpoint not kept" in end["note"]
        assert here.ground.timeline.beats_between(phrase.ends_ms, here.times.now_ms) < 1

    played(scenario)


def test_a_state_that_fails_once_is_asked_again_on_the_next_downbeat() -> None:
    async def scenario(here: Stage) -> None:
        states = iter([ValueError("not yet"), {"at": 2}])

        def state() -> Any:
            if isinstance(now := next(states), Exception):
                raise now
            return now

        long = score(bar_len=32, phases={"plan": 8, "work": 16, "review": 8})
        async with here.phrase(long, task=TASK, state=state) as phrase:
            await here.beats(9)
            assert phrase.resumed is None
            await here.beats(8)
            assert phrase.resumed == {"at": 2}

    played(scenario)


def test_an_agent_cancelled_while_its_last_checkpoint_is_made_is_recorded() -> None:
    async def scenario(here: Stage) -> None:
        asked = asyncio.Event()

        async def state() -> None:
            asked.set()
            await for_ever()

        phrase = here.phrase(score(), task=TASK, state=state)
        await here.beats(4)
        playing = asyncio.create_task(plays(phrase, within_a_phase=False))
        await here.beats(6)
        assert asked.is_set()  # on the downbeat
        asked.clear()
        await asked.wait()
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        end = await here.assert_recorded(phrase, "failed", "failed")
        assert end["note"].endswith("cancelled")

    played(scenario)


# --- fallbacks ---------------------------------------------------------------------------------------


def test_a_fallback_that_waits_without_success_has_no_fallback_and_tells_no_one_again() -> None:
    async def scenario(here: Stage) -> None:
        calls: list[Phrase] = []

        async def coarse() -> None:
            calls.append(phrase)
            await phrase.wait_for(for_ever())

        phrase = here.phrase(score(escalation=FALLS_BACK), task=TASK, fallbacks={"coarse": coarse})
        with pytest.raises(WaitExhausted):
            async with phrase, phrase.work():
                await phrase.wait_for(for_ever())
        assert len(calls) == 1
        assert len(await here.node.messages.inbox("needs-attention")) == 1
        end = await here.assert_recorded(phrase, "failed", "failed")
        assert "fallback coarse failed" in end["note"]
        assert end["bu"] == pytest.approx(2, abs=A_MS)  # it did not wait for itself

    played(scenario)


def test_what_is_waited_for_without_success_again_is_reported_once_by_budget_and_made_up_for_once() -> None:
    async def scenario(here: Stage) -> None:
        calls: list[str] = []
        fallbacks = {"coarse": lambda: calls.append("coarse")}
        async with here.phrase(score(escalation=FALLS_BACK), task=TASK, fallbacks=fallbacks) as phrase:
            for budget in ("help", "help", "io"):
                with pytest.raises(WaitExhausted):
                    await phrase.wait_for(for_ever(), budget)
            await phrase.wait_for(for_ever())
        assert calls == ["coarse"]
        raised = await here.node.messages.inbox("needs-attention")
        assert sorted(message.body["budget"] for message in raised) == ["help", "io"]
        await here.assert_recorded(phrase, "degraded", "done")

    played(scenario)


async def by_gather(phrase: Phrase) -> None:
    await asyncio.gather(phrase.wait_for(for_ever()), phrase.wait_for(for_ever()))


async def by_group(phrase: Phrase) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(phrase.wait_for(for_ever()))
        group.create_task(phrase.wait_for(for_ever()))


@pytest.mark.parametrize("both", [by_gather, by_group])
def test_two_that_wait_without_success_at_once_have_one_fallback(
    both: Callable[[Phrase], Awaitable[None]],
) -> None:
    async def scenario(here: Stage) -> None:
        calls: list[int] = []

        async def coarse() -> int:
            calls.append(len(calls))
            await here.beats(1)
            return len(calls)

        phrase = here.phrase(score(escalation=FALLS_BACK), task=TASK, fallbacks={"coarse": coarse})
        async with phrase, phrase.work():
            await both(phrase)
        assert (phrase.result, calls) == (1, [0])
        end = await here.assert_recorded(phrase, "degraded", "done")
        assert end["beats"] == pytest.approx({"plan": 0, "work": 2, "review": 0, "fallback": 1}, abs=A_MS)

    played(scenario)


def test_a_group_with_an_error_of_another_kind_is_not_made_up_for() -> None:
    async def scenario(here: Stage) -> None:
        phrase = here.phrase(score(escalation=FALLS_BACK), task=TASK, fallbacks={"coarse": lambda: 1})

        async def agent() -> None:
            async with phrase:
                results = await asyncio.gather(phrase.wait_for(for_ever()), return_exceptions=True)
                errors = [error for error in results if isinstance(error, Exception)]
                raise ExceptionGroup("both", [*errors, LookupError("gone")])

        with pytest.raises(ExceptionGroup):
            await agent()
        await here.assert_recorded(phrase, "failed", "failed")

    played(scenario)


def test_a_fallback_whose_caller_was_cancelled_is_done_by_who_waits_beside() -> None:
    async def scenario(here: Stage) -> None:
        calls: list[int] = []

        async def coarse() -> str:
            calls.append(len(calls))
            await here.beats(1)
            return "coarse"

        given = score(escalation=FALLS_BACK)
        async with here.phrase(given, task=TASK, fallbacks={"coarse": coarse}) as phrase:
            await phrase.wait_for(
                phrase.wait_for(for_ever(), "io"), "help"
            )  # 1 beat in 2: cut off in the end
        assert phrase.result == "coarse"
        assert len(calls) <= 2
        await here.assert_recorded(phrase, "degraded", "done")

    played(scenario)


# --- what does not end when it should ----------------------------------------------------------------


def test_a_wait_that_outlives_its_phase_has_its_result() -> None:
    async def scenario(here: Stage) -> None:
        async with here.phrase(score(), task=TASK) as phrase:
            async with phrase.plan():
                waiting = asyncio.create_task(phrase.wait_for(asyncio.sleep(BEAT_MS / 1_000, "read")))
                await asyncio.sleep(0)
            await here.beats(1.5)
            assert await waiting == "read"
        await here.assert_recorded(phrase, "done", "done")

    played(scenario)


def test_a_wait_that_outlives_its_phrase_ends_by_itself_and_says_nothing_more() -> None:
    async def scenario(here: Stage) -> None:
        calls: list[int] = []
        fallbacks = {"coarse": lambda: calls.append(1)}
        async with here.phrase(score(escalation=FALLS_BACK), task=TASK, fallbacks=fallbacks) as phrase:
            waiting = asyncio.create_task(phrase.wait_for(for_ever()))
            await here.beats(0.5)
        with pytest.raises(WaitExhausted):
            await waiting
        assert calls == []
        await here.assert_recorded(phrase, "done", "done")

    played(scenario)


@pytest.mark.parametrize("bpm", [12, 600])
def test_what_will_not_be_cancelled_is_left_to_itself_soon_and_that_is_not_waiting(
    bpm: int, tmp_path: Path
) -> None:
    (tmp_path / "tempo.yaml").write_text(f"cluster_id: demo\ninitial_bpm: {bpm}\n")

    async def scenario(here: Stage) -> None:
        beat_ms = here.ground.beat().beat_ms
        waiting = asyncio.ensure_future(will_not_end())
        with pytest.raises(WaitExhausted):
            async with here.phrase(score(), task=TASK) as phrase, phrase.work():
                await phrase.wait_for(waiting)
        end = await here.assert_recorded(phrase, "failed", "failed")
        assert end["waited"]["help"] <= 2
        last_words_ms = min(500, beat_ms / 2)
        assert end["ended_ms"] - end["began_ms"] == pytest.approx(2 * beat_ms + last_words_ms, abs=3)
        await waiting

    played(scenario, tempo_policy=tmp_path / "tempo.yaml")


def test_a_body_that_will_not_be_cut_off_is_degraded_and_notified_how_late_it_was() -> None:
    async def scenario(here: Stage) -> None:
        async with here.phrase(score(), task=TASK) as phrase:
            try:
                await for_ever()
            except asyncio.CancelledError:
                await here.beats(3)
        end = await here.assert_recorded(phrase, "degraded", "done")
        assert (end["note"], end["overruns"]) == ("ended 3 beats late", 1)
        assert end["bu"] == pytest.approx(11, abs=A_MS)

    played(scenario)


# --- checkpoints -------------------------------------------------------------------------------------


def test_a_checkpoint_is_known_to_the_next_phrase_though_it_can_not_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(here: Stage) -> None:
        async def away(*_: Any, **__: Any) -> None:
            raise DatabaseUnavailable("away")

        resumed: list[Any] = []
        async for phrase in here.phrases(score(), task=TASK, state=lambda: {"pages": len(resumed)}):
            async with phrase:
                monkeypatch.undo()
                resumed.append(phrase.resumed)
                async with phrase.work():
                    await (for_ever() if phrase.attempt == 1 else here.beats(0.5))
            monkeypatch.setattr(here.node.store, "read", away)
        monkeypatch.undo()
        assert resumed == [None, {"pages": 1}]

    played(scenario)


def test_a_checkpoint_that_is_still_on_its_way_is_not_replaced_by_the_one_before() -> None:
    async def scenario(here: Stage) -> None:
        resumed: list[Any] = []
        async for phrase in here.phrases(score(), task=TASK, state=lambda: {"pages": len(resumed)}):
            async with phrase:
                resumed.append(phrase.resumed)
                async with phrase.work():
                    await (for_ever() if phrase.attempt == 1 else here.beats(0.5))
            before = Statement("UPDATE phrase_checkpoints SET value = '{}', hlc = '0' || hlc")
            await here.node.store.write(Script(before))
        assert resumed == [None, {"pages": 1}]

    played(scenario)


def test_a_task_that_is_done_begins_again_and_one_that_is_not_goes_on() -> None:
    async def scenario(here: Stage) -> None:
        async def round_of(beats: float) -> Any:
            async with here.phrase(score(escalation=STAYS), task=TASK) as phrase:
                await phrase.checkpoint({"page": 99})
                async with phrase.work():
                    await here.beats(beats)
            return phrase.outcome

        assert await round_of(1) == "done"
        async with here.phrase(task=TASK) as again:
            assert again.resumed is None
        assert await round_of(5) == "degraded"
        async with here.phrase(task=TASK) as goes_on:
            assert goes_on.resumed == {"page": 99}

    played(scenario)
