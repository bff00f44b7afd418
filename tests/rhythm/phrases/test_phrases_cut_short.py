"""Phrases that are cut short: by their phase, by a budget, or to be gone on with from a checkpoint."""

from __future__ import annotations

import asyncio
from itertools import groupby

import pytest

from tests.support.nodes.virtual_time import VirtualLoop
from tests.support.rhythm.phrase_stage import A_MS, BEAT_MS, STAYS, TASK, Stage, for_ever, played, score
from vox_mesh.errors import (
    OverBudget,
    PhaseOverrun,
    PhraseDeferred,
    WaitExhausted,
)
from vox_mesh.model.rhythm.budgets import Budget
from vox_mesh.rhythm.phrases.phrase import Phrase

# --- overruns and retries ----------------------------------------------------------------------------


def test_an_agent_that_overruns_is_cut_off_checkpointed_and_deferred() -> None:
    async def scenario(here: Stage) -> None:
        steps: list[int] = []
        phrase = here.phrase(score(), task=TASK, state=lambda: steps)

        async def agent() -> None:
            async with phrase, phrase.work():
                while True:
                    await here.beats(0.9)
                    steps.append(len(steps))

        with pytest.raises(PhraseDeferred) as raised:
            await agent()
        assert raised.value.phase == "work"
        assert len(steps) == 4
        end = await here.assert_recorded(phrase, "deferred", "failed")
        assert end["overruns"] == 1
        assert end["beats"]["work"] == pytest.approx(4, abs=A_MS)
        rows = await here.node.store.read("SELECT overran FROM status_claims WHERE state = 'failed'")
        assert [row["overran"] for row in rows] == [1]
        async with here.phrase(task=TASK) as next_one:
            assert next_one.resumed == steps

    played(scenario)


def test_retries_shrink_and_end_with_the_first_that_is_not_deferred() -> None:
    async def scenario(here: Stage) -> None:
        given = score(retry={"max_phrases": 4, "backoff": "geometric"})
        played_ones: list[Phrase] = []
        async for phrase in here.phrases(given, task=TASK):
            played_ones.append(phrase)
            await here.beats(1)
            async with phrase:
                async with phrase.work():
                    await (for_ever() if phrase.attempt < 3 else here.beats(0.5))
                async with phrase.review():
                    await here.beats(0.5)
        assert [phrase.beats for phrase in played_ones] == [
            {"plan": 2, "work": 4, "review": 2},
            {"plan": 1, "work": 2, "review": 1},
            {"plan": 1, "work": 1, "review": 1},
        ]
        assert [end["outcome"] for end in await here.ends()] == ["deferred", "deferred", "done"]
        assert [end["attempt"] for end in await here.ends()] == [1, 2, 3]
        states = [state for state, _ in groupby(state for state, _ in await here.claims())]
        assert states == ["executing", "waiting", "executing", "waiting", "review", "done"]

    played(scenario)


def test_when_no_phrase_is_left_the_overrun_is_reported() -> None:
    async def scenario(here: Stage) -> None:
        async def agent() -> None:
            async for phrase in here.phrases(score(), task=TASK):
                async with phrase, phrase.work():
                    await for_ever()

        with pytest.raises(PhaseOverrun) as raised:
            await agent()
        assert raised.value.phase == "work"
        assert [end["outcome"] for end in await here.ends()] == ["deferred", "failed"]
        assert (await here.claims())[-1][0] == "failed"

    played(scenario)


def test_what_lies_in_no_phase_is_cut_off_with_the_phrase() -> None:
    async def scenario(here: Stage) -> None:
        with pytest.raises(PhaseOverrun):
            async with here.phrase(score(escalation=STAYS), task=TASK) as phrase:
                await for_ever()
        end = await here.assert_recorded(phrase, "failed", "failed")
        assert end["beats"]["between"] == pytest.approx(8, abs=A_MS)

    played(scenario)


def test_the_last_phase_is_cut_off_before_the_phrase_which_ends_as_it_should() -> None:
    async def scenario(here: Stage) -> None:
        async with here.phrase(score(escalation=STAYS), task=TASK) as phrase:
            await here.beats(6)
            async with phrase.review() as review:
                await for_ever()
            phrase.result = "as far as it goes"
        assert review.overran
        end = await here.assert_recorded(phrase, "degraded", "done")
        assert (end["overruns"], end["bu"]) == (1, pytest.approx(8, abs=A_MS))

    played(scenario)


def test_what_can_not_be_cut_off_is_an_overrun_all_the_same_but_not_done_again() -> None:
    async def scenario(here: Stage) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        async with here.phrase(score(), task=TASK) as phrase:
            async with phrase.work() as work:
                loop.pass_time(4.5 * BEAT_MS / 1_000)
            async with phrase.review():
                await here.beats(0.5)
        assert work.overran
        end = await here.assert_recorded(phrase, "done", "done")
        assert end["overruns"] == 1

    played(scenario)


# --- checkpoints -------------------------------------------------------------------------------------


def test_a_state_is_kept_on_each_downbeat_and_a_checkpoint_is_written_once() -> None:
    async def scenario(here: Stage) -> None:
        state = {"at": 0}
        await here.beats(3)
        phrase = here.phrase(task=TASK, state=lambda: dict(state))

        async def agent() -> None:
            async with phrase:
                assert phrase.resumed is None
                for _ in range(7):
                    await here.beats(1)
                    state["at"] += 1
                assert phrase.resumed in ({"at": 4}, {"at": 5})
                written = here.node.store.change_count
                await phrase.checkpoint(phrase.resumed)
                assert here.node.store.change_count == written
                await phrase.checkpoint({"at": 7})
                assert here.node.store.change_count > written
                raise LookupError("not done")

        with pytest.raises(LookupError):
            await agent()
        rows = await here.node.store.read("SELECT window_ms, value FROM phrase_checkpoints")
        assert [tuple(row) for row in rows] == [(here.ground.beat().window_ms, '{"at":7}')]
        async with here.phrase(task=TASK) as again:
            assert again.resumed == {"at": 7}
            written = here.node.store.change_count
            await again.checkpoint({"at": 7})  # known from before, in the same bar
            assert here.node.store.change_count == written
        async with here.phrase(task=TASK, agent="bob") as other:
            assert other.resumed is None

    played(scenario)


# --- budgets -----------------------------------------------------------------------------------------


def test_an_agent_over_budget_is_stopped_and_pays_for_what_it_used() -> None:
    async def scenario(here: Stage) -> None:
        phrase = here.phrase(score(), task=TASK, budget={"max_bu": 3, "charge_to": "lab"})

        async def agent() -> None:
            async with phrase:
                async with phrase.plan():
                    await here.beats(1)
                async with phrase.work():
                    await for_ever()

        with pytest.raises(OverBudget):
            await agent()
        end = await here.assert_recorded(phrase, "failed", "failed")
        assert (end["bu"], end["account"]) == (pytest.approx(3.75, abs=A_MS), "lab")
        assert end["note"].startswith("OverBudget")

    played(scenario)


def test_a_budget_lowers_all_ceilings_and_is_one_for_all_retries() -> None:
    async def scenario(here: Stage) -> None:
        budget = Budget.of_document({"phase_caps": {"work": 1}, "wait_caps": {"help": 0.5}, "max_bu": 1.5})

        async def agent() -> None:
            async for phrase in here.phrases(score(), task=TASK, budget=budget):
                async with phrase, phrase.work():
                    if phrase.attempt == 1:
                        with pytest.raises(WaitExhausted):
                            await phrase.wait_for(for_ever())
                    await for_ever()

        with pytest.raises(OverBudget):
            await agent()
        first, second = await here.ends()
        assert first["waited"]["help"] == pytest.approx(0.5, abs=A_MS)
        assert first["beats"]["work"] == pytest.approx(1, abs=A_MS)
        assert second["bu"] == pytest.approx(0.875, abs=A_MS)
        assert [first["outcome"], second["outcome"]] == ["deferred", "failed"]

    played(scenario)


def test_nothing_is_begun_for_an_agent_that_has_spent_its_budget() -> None:
    async def scenario(here: Stage) -> None:
        await here.budgets.set("agent:ada", Budget.of_document({"max_bu": 1}))
        async with here.phrase(task=TASK):
            await here.beats(1.1)
        await here.beats(1)
        with pytest.raises(OverBudget):
            async with here.phrase(task=TASK):
                raise AssertionError("it was begun")
        assert [end["outcome"] for end in await here.ends()] == ["done", "failed"]
        assert (await here.claims())[-1][0] == "failed"

    played(scenario)


def test_a_hard_end_holds() -> None:
    async def scenario(here: Stage) -> None:
        await here.beats(6)
        with pytest.raises(OverBudget):
            async with here.phrase(task=TASK, budget={"hard_end": "bar+0"}) as phrase:
                await for_ever()
        assert (await here.assert_recorded(phrase, "failed", "failed"))["bu"] == pytest.approx(2, abs=A_MS)

    played(scenario)
