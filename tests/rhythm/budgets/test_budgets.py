"""Budgets: what follows from what was spent, when all has an end, and what the database has of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rhythm.tempo.test_tempo import near, timelines
from tests.support.oplog.authoring import RestartableNodes, scene
from tests.support.rhythm.phrase_stage import A_MS, TASK, Stage, for_ever, played, score
from tools.homes import MESH
from tools.sqld import Server
from vox_mesh import Mesh
from vox_mesh.errors import BadBudget, BadValue, NotKnown, OverBudget, WaitExhausted
from vox_mesh.model.rhythm.budgets import WAITS, Budget, Verdict, capped, capped_waits, parse_budget, verdict
from vox_mesh.model.rhythm.costs import PhraseBegin, PhraseEnd, PhraseOutcome, Resources
from vox_mesh.model.rhythm.plan import Plan
from vox_mesh.model.rhythm.score import WaitBudget
from vox_mesh.model.rhythm.tempo import Tempo, Timeline
from vox_mesh.node import MeshNode
from vox_mesh.rhythm.budgets import Budgets
from vox_mesh.store.script import Script, Statement, new_key

SHARES = st.floats(0, 10, allow_nan=False)
_ORDER = list(Verdict)


# --- the rules -----------------------------------------------------------------------------------


@given(st.floats(0, 1e6), st.tuples(SHARES, SHARES, SHARES), st.floats(0, 1e7), st.floats(0, 1e7))
def test_verdicts_follow_the_thresholds_and_never_get_milder_as_more_is_spent(
    most: float, shares: tuple[float, float, float], one: float, other: float
) -> None:
    warn, claims, work = sorted(shares)
    budget = Budget.of_document(
        {"max_bu": most, "thresholds": {"warn": warn, "claims": claims, "work": work}}
    )
    less, more = sorted((one, other))
    assert _ORDER.index(verdict(less, budget)) <= _ORDER.index(verdict(more, budget))
    found = verdict(one, budget)
    assert (found is Verdict.STOP) == (one >= work * most)
    assert (found is Verdict.OK) == (one < min(warn * most, claims * most, work * most))


@pytest.mark.parametrize(
    ("spent", "found"),
    [(7.99, "ok"), (8, "warn"), (9.99, "warn"), (10, "no_claims"), (12.49, "no_claims"), (12.5, "stop")],
)
def test_by_default_it_warns_at_four_fifths_and_stops_at_five_quarters(spent: float, found: str) -> None:
    assert verdict(spent, Budget(max_bu=10)) == found


def test_without_a_bound_anything_may_be_spent() -> None:
    assert verdict(1e12, Budget()) is Verdict.OK


@given(st.data(), timelines(), st.integers(0, 12))
def test_a_hard_end_is_the_end_of_the_bar_this_many_bars_on(
    data: st.DataObject, timeline: Timeline, bars: int
) -> None:
    since_ms = data.draw(near(timeline))
    end_ms = Budget(hard_end=f"bar+{bars}").hard_end_ms(timeline, since_ms)
    assert end_ms is not None
    assert timeline.beat_at(end_ms).is_downbeat
    assert timeline.beat_at(end_ms).epoch_ms == end_ms
    assert timeline.bars_between(since_ms, end_ms) == bars + 1


@given(timelines(), st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
def test_a_hard_end_may_be_a_time(timeline: Timeline, moment: datetime) -> None:
    found = Budget(hard_end=moment.isoformat()).hard_end_ms(timeline, 0)
    assert found == round(moment.timestamp() * 1_000)


def test_caps_only_ever_take_away() -> None:
    one = Budget.of_document({"phase_caps": {"work": 2, "plan": 9}, "wait_caps": {"help": 1}})
    other = Budget.of_document({"phase_caps": {"work": 3, "review": 1}, "wait_caps": {"io": 0.5}})
    beats, waits = {"plan": 2, "work": 4, "review": 2}, {"help": 2, "io": 1}
    assert (capped(beats, []), capped_waits(waits, [])) == (beats, waits)
    assert capped(beats, [one]) == {"plan": 2, "work": 2, "review": 2}
    assert capped(beats, [one, other]) == capped(beats, [other, one]) == {"plan": 2, "work": 2, "review": 1}
    assert capped_waits(waits, [one]) == {"help": 1, "io": 1}
    assert capped_waits(waits, [one, other]) == {"help": 1, "io": 0.5}


def test_what_can_be_capped_is_what_a_score_has() -> None:
    assert tuple(WaitBudget.model_fields) == WAITS


def test_the_ceiling_of_a_beat_names_what_exceeds_it() -> None:
    budget = Budget.of_document({"per_beat": {"cpu_sec": 2, "gpu_sec": {"A100": 1}}})
    assert budget.over_in_beat(Resources(cpu_sec=3), beats=2) is None
    within = Resources(cpu_sec=2, mem_gbs=1e9, gpu_sec={"A100": 1, "4090": 1e9})
    assert budget.over_in_beat(within) is None
    assert "3 cpu_sec in a beat, where 2" in str(budget.over_in_beat(Resources(cpu_sec=3)))
    assert "gpu_sec[A100]" in str(budget.over_in_beat(Resources(gpu_sec={"A100": 1.1})))


def test_a_budget_is_read_as_it_was_written() -> None:
    text = "budget:\n  max_bu: 4\n  hard_end: bar+2\n  charge_to: ucxl://acct/x\n  wait_caps: {help: 1}\n"
    budget = parse_budget(text)
    assert budget.document() == {
        "max_bu": 4,
        "hard_end": "bar+2",
        "charge_to": "ucxl://acct/x",
        "wait_caps": {"help": 1},
    }
    assert Budget.of_document(budget.document()) == budget


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("max_bu: -1", "budget.max_bu: must not be -1"),
        ("max_bu: 1.0e+13", "budget.max_bu: must not be 10000000000000.0; allowed: beats in all"),
        (
            "per_beat: {cpu_sec: 1.0e+308}",
            "budget.per_beat.cpu_sec: cpu_sec must be a number from 0",
        ),
        ("phase_caps: {wrok: 1}", "budget.phase_caps.wrok: is no phase; one of plan, work, review"),
        ("wait_caps: {halp: 1}", "budget.wait_caps.halp: is no wait budget; one of help, io"),
        ("thresholds: {warn: 1.1}", "budget.thresholds.warn: warn is 1.1 and claims 1; allowed: warn <="),
        ("thresholds: {work: 0.9}", "budget.thresholds.work: claims is 1 and work 0.9"),
        ("max_bu: many", "budget.max_bu: must be a number, not text"),
        ("hard_end: bar+x", "budget.hard_end: 'bar+x' is no end"),
        ("hard_end: 2030-01-31T08:00:00", "budget.hard_end: '2030-01-31T08:00:00' is no end"),
        ("hard_end: 3", "budget.hard_end: 3 is no end"),
        ("charge_to: a b", "budget.charge_to: must not be 'a b'"),
        ("per_beat: {tokens: 3}", "budget.per_beat.tokens: is no resource"),
        ("per_beat: {gpu_sec: 3}", "budget.per_beat.gpu_sec: gpu_sec must be a map"),
        ("phase_caps: {plan: x}", "budget.phase_caps.plan: must be a number"),
        ("thresholds: {warn: -1}", "budget.thresholds.warn: must not be -1"),
        ("hard_end: bar+10000", "budget.hard_end: 'bar+10000' is no end"),
        ("max_bu:", "budget.max_bu: must not be empty or null"),
        ("tokens: 3", "budget.tokens: is no field"),
    ],
)
def test_a_fault_is_reported_with_its_line_and_field(line: str, fault: str) -> None:
    with pytest.raises(BadBudget) as raised:
        parse_budget(f"budget: # of three lines\n\n  {line}\n", "b.yaml")
    (amounts,) = raised.value.faults
    assert amounts.startswith(f"b.yaml:3: {fault}")


# --- in the database -----------------------------------------------------------------------------


@pytest.fixture
async def there() -> AsyncIterator[RestartableNodes]:
    """A database."""
    async with scene() as there:
        yield there


@pytest.fixture
async def node(there: RestartableNodes) -> AsyncIterator[MeshNode]:
    """A node on it."""
    async with there.node() as node:
        await node.run_once()
        yield node


def ended(node: MeshNode, beats: float, *, agent: str = "ann", account: str = "", **used: float) -> PhraseEnd:
    """A phrase that took this many beats until now."""
    now_ms = node.rhythm.times.now_ms
    return PhraseEnd(
        phrase_id=new_key(),
        agent_id=agent,
        task_id="task",
        outcome=PhraseOutcome.DONE,
        began_ms=now_ms - 10,
        ended_ms=now_ms,
        beats={"work": beats},
        resources=Resources.of(used),
        account=account,
    )


async def record(node: MeshNode, *ends: PhraseEnd) -> None:
    """Have them recorded."""
    await node.store.write(Script(*(node.rhythm.budgets.record(each) for each in ends)))


async def test_what_was_spent_is_reported_by_agent_and_account(node: MeshNode) -> None:
    budgets = node.rhythm.budgets
    end = ended(node, 2, account="acme", cpu_sec=1.5)
    await record(node, end, ended(node, 3), ended(node, 4, agent="bob", account="acme", cpu_sec=0.5))
    await record(node, end)  # reported twice, it counts once
    found = {each.subject: each for each in await budgets.report()}
    assert {name: (each.phrases, each.bu, each.cost) for name, each in found.items()} == {
        "account:acme": (2, 6.0, 6.0),
        "agent:ann": (2, 5.0, 5.0),
        "agent:bob": (1, 4.0, 4.0),
    }
    assert found["account:acme"].resources == Resources(cpu_sec=2.0)
    assert found["agent:ann"].resources == Resources(cpu_sec=1.5)
    assert [each.subject for each in await budgets.report("agent:bob")] == ["agent:bob"]
    later_ms = node.rhythm.times.now_ms + 60_000
    assert await budgets.report(since_ms=later_ms) == []


async def test_devices_are_summed_by_class(node: MeshNode) -> None:
    one = ended(node, 1, gpu_sec={"A100": 1.0, "a.b": 2.0})  # type: ignore[arg-type]
    two = ended(node, 1, gpu_sec={"A100": 0.5})  # type: ignore[arg-type]
    await record(node, one, two)
    (found,) = await node.rhythm.budgets.report()
    assert found.resources == Resources(gpu_sec={"A100": 1.5, "a.b": 2.0})


async def test_a_budget_that_is_spent_is_exhausted_until_it_is_raised_or_set_again(node: MeshNode) -> None:
    budgets = node.rhythm.budgets
    await budgets.set("account:acme", Budget(max_bu=5))
    since_ms = (await budgets.set("agent:ann", Budget(max_bu=100))).since_ms
    await node.rhythm.times.until(since_ms)  # the database's clock may be a little ahead of ours
    await record(node, ended(node, 5, account="acme"))

    async def exhausted() -> list[str]:
        return await Budgets(node.rhythm.context, budgets.rates).exhausted_accounts()

    assert await exhausted() == ["acme"]
    assert {each.subject: each.verdict for each in await budgets.report()} == {
        "account:acme": Verdict.NO_CLAIMS,
        "agent:ann": Verdict.OK,
    }
    await budgets.set("account:acme", Budget(max_bu=50))
    assert await exhausted() == []
    await budgets.set("account:acme", Budget(max_bu=5))
    assert await exhausted() == ["acme"]
    ((_, before),) = [(each.subject, each.since_ms) for each in await budgets.show("account:acme")]
    assert (await budgets.set("account:acme", Budget(max_bu=5), anew=True)).since_ms >= before
    await record(node, ended(node, 4.9, account="acme"))
    await budgets.remove("account:acme")
    assert await exhausted() == []
    assert [each.subject for each in await budgets.show()] == ["agent:ann"]


async def test_how_budgets_stand_is_kept_and_not_summed_from_all_that_ever_ended(node: MeshNode) -> None:
    budgets, store = node.rhythm.budgets, node.store

    async def stand() -> dict[str, float]:
        found = await Budgets(node.rhythm.context, budgets.rates).standings()
        return {subject: each.bu for subject, each in found.items()}

    await budgets.set("agent:ann", Budget(max_bu=100))
    since_ms = (await budgets.set("account:acme", Budget(max_bu=100))).since_ms
    await node.rhythm.times.until(since_ms)
    end = ended(node, 5, account="acme")
    await record(node, end, ended(node, 2), replace(ended(node, 9), ended_ms=since_ms - 60_000))
    await record(node, end)  # reported twice, it counts once
    await store.write(Script(Statement("DELETE FROM phrase_ends WHERE scope_id = ?1", store.writer_id[:1])))
    assert await stand() == {"agent:ann": 7, "account:acme": 5}
    await budgets.set("agent:ann", Budget(max_bu=50))
    await budgets.set("account:acme", Budget(max_bu=50), anew=True)
    assert await stand() == {"agent:ann": 7, "account:acme": 0}


async def test_what_was_lost_with_a_worker_is_charged_once_until_the_end_of_its_lease(node: MeshNode) -> None:
    budgets, now_ms = node.rhythm.budgets, node.rhythm.times.now_ms
    begins = [
        PhraseBegin(new_key(), job, 1, "ann", account, "work", 1, now_ms - ago_ms)
        for job, account, ago_ms in (("long-ago", "acme", 60_000), ("just-now", "", 6_000))
    ]
    lease = Statement(
        "UPDATE phrase_begins SET lease_until_ms = began_ms + 5000 WHERE scope_id = ?1",
        node.store.writer_id[:1],
    )
    await node.store.write(Script(*map(budgets.record_begin, begins), lease))
    amounts = replace(ended(node, 7), phrase_id=begins[0].phrase_id, job_id="long-ago")
    for _ in range(2):
        await budgets.charge_lost("another", fresh=True)  # the other one may only be late
        await record(node, amounts)  # too late
        (found,) = await budgets.report("agent:ann")
        assert found.phrases == 1
        assert found.bu == pytest.approx(1.0)
        assert [each.bu for each in await budgets.report("account:acme")] == [pytest.approx(1.0)]
    await budgets.charge_lost("just-now", fresh=True)
    (found,) = await budgets.report("agent:ann")
    assert found.phrases == 2
    assert found.bu == pytest.approx(2.0)
    await node.store.write(Script(*map(budgets.record_begin, begins)))  # from the spool, after all of that
    await budgets.charge_lost("just-now", fresh=True)
    assert [each.bu for each in await budgets.report("agent:ann")] == [pytest.approx(2.0)]


# --- phrases -------------------------------------------------------------------------------------


def test_the_lowest_cap_of_task_agent_and_account_holds_in_a_phrase() -> None:
    async def scenario(here: Stage) -> None:
        await here.budgets.set("agent:ada", Budget(phase_caps={"plan": 1}, wait_caps={"io": 0}))
        await here.budgets.set("account:lab", Budget(phase_caps={"work": 1}, wait_caps={"help": 0.5}))
        await here.beats(1)
        own = {"charge_to": "lab", "phase_caps": {"work": 3, "review": 0.5}}
        phrase = here.phrase(score(), task=TASK, budget=own)

        async def agent() -> None:
            async with phrase, phrase.work():
                await phrase.wait_for(for_ever())

        with pytest.raises(WaitExhausted):
            await agent()
        assert phrase.beats == {"plan": 1, "work": 1, "review": 0.5}
        assert phrase.end is not None
        assert phrase.end.waited["help"] == pytest.approx(0.5, abs=A_MS)

    played(scenario)


def test_a_task_has_the_same_thresholds_as_a_job() -> None:
    async def scenario(here: Stage) -> None:
        budget = {"max_bu": 2, "thresholds": {"work": 1.5}}
        for one in (here.phrase(score(), task=TASK, budget=each) for each in (budget, {"max_bu": 0})):
            with pytest.raises(OverBudget):
                async with one:
                    await for_ever()
        assert [end["bu"] for end in await here.ends()] == [pytest.approx(3, abs=A_MS), 0]

    played(scenario)


# --- workers -------------------------------------------------------------------------------------


async def test_how_budgets_stand_is_looked_at_once_a_beat(node: MeshNode) -> None:
    ground = node.rhythm.context
    budgets = Budgets(ground, node.rhythm.budgets.rates)
    slow = Tempo(bpm=1 / 60, bar_len=8, anchor_ms=ground.times.now_ms)
    ground.plan = Plan(replace(ground.entry, tempo=slow))
    assert await budgets.standings() == {}
    assert budgets.next_check_ms is None
    await budgets.set("agent:ann", Budget(max_bu=1))
    assert await budgets.standings() == {}
    assert budgets.next_check_ms == slow.anchor_ms + slow.beat_ms
    ground.plan = Plan(replace(ground.entry, tempo=Tempo(bpm=600, bar_len=8)))
    assert {*await budgets.standings()} == {"agent:ann"}
    await budgets.set("agent:bob", Budget(max_bu=1))
    await ground.times.until(budgets.next_check_ms or 0)
    assert {*await budgets.standings()} == {"agent:ann", "agent:bob"}


@pytest.mark.parametrize("subject", ["ann", "node:ann", "agent:", "agent:a b", "account:x\n", ""])
async def test_only_agents_and_accounts_have_budgets(node: MeshNode, subject: str) -> None:
    with pytest.raises(BadValue, match="subject must be"):
        await node.rhythm.budgets.set(subject, Budget(max_bu=1))


async def test_a_budget_that_is_not_set_can_not_be_shown_or_removed(node: MeshNode) -> None:
    for asked in (node.rhythm.budgets.show("agent:unknown"), node.rhythm.budgets.remove("agent:unknown")):
        with pytest.raises(NotKnown, match="agent:unknown has no budget"):
            await asked
    with pytest.raises(BadValue, match="charge_to"):
        await node.rhythm.budgets.set("agent:ann", Budget(charge_to="x"))


async def test_attempts_that_begin_together_share_a_look_at_how_budgets_stand(
    tmp_path: Path, shared_server: Server
) -> None:
    async with Mesh.open(MESH.settings(tmp_path, shared_server, tick="1h")) as node:
        budgets, counted = Budgets(node.rhythm.context, node.rhythm.budgets.rates), node.store.stats.requests
        await budgets.set("agent:ann", Budget(max_bu=1))
        before = counted["read"]
        found = await asyncio.gather(*(budgets.standings() for _ in range(64)))
        assert [{*each} for each in found] == [{"agent:ann"}] * 64
        assert counted["read"] - before == 1
