"""Budgets: what follows from what was spent, when all has an end, and what the database tells of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rhythm.test_tempo import near, timelines
from tests.support.authoring import Scene, scene
from vox_mesh.errors import BadBudget, BadValue, NotKnown
from vox_mesh.model.rhythm.budgets import Budget, Verdict, parse_budget, verdict
from vox_mesh.model.rhythm.costs import Resources
from vox_mesh.model.rhythm.ends import PhraseEnd, PhraseOutcome
from vox_mesh.model.rhythm.plan import Plan
from vox_mesh.model.rhythm.tempo import Tempo, Timeline
from vox_mesh.node import MeshNode
from vox_mesh.rhythm.budgets import Budgets
from vox_mesh.store.script import Script, new_key

SHARES = st.floats(0, 10, allow_nan=False)
_ORDER = list(Verdict)


# --- the rules -----------------------------------------------------------------------------------


@given(st.floats(0, 1e6), st.tuples(SHARES, SHARES, SHARES), st.floats(0, 1e7), st.floats(0, 1e7))
def test_verdicts_follow_the_thresholds_and_never_get_milder_as_more_is_spent(
    most: float, shares: tuple[float, float, float], one: float, other: float
) -> None:
    warn, claims, work = shares
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
def test_a_hard_end_is_the_end_of_the_bar_so_many_bars_on(
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
    budget = Budget.of_document({"phase_caps": {"work": 2, "plan": 9}, "wait_caps": {"help": 1}})
    assert budget.capped({"plan": 2, "work": 4, "review": 2}) == {"plan": 2, "work": 2, "review": 2}
    assert budget.capped_waits({"help": 2, "io": 1}) == {"help": 1, "io": 1}


def test_the_ceiling_of_a_beat_names_what_exceeds_it() -> None:
    budget = Budget.of_document({"per_beat": {"cpu_sec": 2, "gpu_sec": {"A100": 1}}})
    assert budget.over_in_beat(Resources(cpu_sec=3), beats=2) is None
    within = Resources(cpu_sec=2, mem_gbs=1e9, gpu_sec={"A100": 1, "4090": 1e9})
    assert budget.over_in_beat(within) is None
    assert "3 cpu_sec in a beat, where 2" in (budget.over_in_beat(Resources(cpu_sec=3)) or "")
    assert "gpu_sec[A100]" in (budget.over_in_beat(Resources(gpu_sec={"A100": 1.1})) or "")


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
        ("max_bu: many", "budget.max_bu: must be a number, not text"),
        ("hard_end: bar+x", "budget.hard_end: 'bar+x' is no end"),
        ("hard_end: 2030-01-31T08:00:00", "budget.hard_end: '2030-01-31T08:00:00' is no end"),
        ("hard_end: 3", "budget.hard_end: 3 is no end"),
        ("charge_to: a b", "budget.charge_to: must not be 'a b'"),
        ("per_beat: {tokens: 3}", "budget.per_beat.tokens: is no resource"),
        ("per_beat: {gpu_sec: 3}", "budget.per_beat.gpu_sec: gpu_sec is told by class"),
        ("phase_caps: {plan: x}", "budget.phase_caps.plan: must be a number"),
        ("thresholds: {warn: -1}", "budget.thresholds.warn: must not be -1"),
        ("hard_end: bar+10000", "budget.hard_end: 'bar+10000' is no end"),
        ("max_bu:", "budget.max_bu: must not be empty or null"),
        ("tokens: 3", "budget.tokens: is no field"),
    ],
)
def test_a_fault_is_told_with_its_line_and_field(line: str, fault: str) -> None:
    with pytest.raises(BadBudget) as raised:
        parse_budget(f"budget:\n  wait_caps: {{}}\n  {line}\n", "b.yaml")
    (told,) = raised.value.faults
    assert told.startswith(f"b.yaml:3: {fault}")


# --- in the database -----------------------------------------------------------------------------


@pytest.fixture
async def there() -> AsyncIterator[Scene]:
    """A database."""
    async with scene() as there:
        yield there


@pytest.fixture
async def node(there: Scene) -> AsyncIterator[MeshNode]:
    """A node on it."""
    async with there.node() as node:
        await node.run_once()
        yield node


def ended(node: MeshNode, beats: float, *, agent: str = "ann", account: str = "", **used: float) -> PhraseEnd:
    """A phrase that took so many beats until now."""
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


async def test_what_was_spent_is_told_by_agent_and_account(node: MeshNode) -> None:
    budgets = node.rhythm.budgets
    end = ended(node, 2, account="acme", cpu_sec=1.5)
    await record(node, end, ended(node, 3), ended(node, 4, agent="bob", account="acme", cpu_sec=0.5))
    await record(node, end)  # told twice, it counts once
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


async def test_a_budget_that_is_spent_is_exhausted_until_it_is_raised_or_set_anew(node: MeshNode) -> None:
    budgets = node.rhythm.budgets
    await budgets.set("account:acme", Budget(max_bu=5))
    since_ms = (await budgets.set("agent:ann", Budget(max_bu=100))).since_ms
    await node.rhythm.times.until(since_ms)  # the database's clock may be a little ahead of ours
    await record(node, ended(node, 5, account="acme"))

    async def exhausted() -> list[str]:
        return await Budgets(node.rhythm.ground, budgets.rates).exhausted_accounts()

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


async def test_how_budgets_stand_is_looked_at_once_a_beat(node: MeshNode) -> None:
    ground = node.rhythm.ground
    budgets = Budgets(ground, node.rhythm.budgets.rates)
    slow = Tempo(bpm=1 / 60, bar_len=8, anchor_ms=ground.times.now_ms)
    ground.plan = Plan(replace(ground.entry, tempo=slow))
    assert await budgets.standings() == {}
    assert budgets.look_again_ms is None
    await budgets.set("agent:ann", Budget(max_bu=1))
    assert await budgets.standings() == {}
    assert budgets.look_again_ms == slow.anchor_ms + slow.beat_ms
    ground.plan = Plan(replace(ground.entry, tempo=Tempo(bpm=600, bar_len=8)))
    assert {*await budgets.standings()} == {"agent:ann"}
    await budgets.set("agent:bob", Budget(max_bu=1))
    await ground.times.until(budgets.look_again_ms or 0)
    assert {*await budgets.standings()} == {"agent:ann", "agent:bob"}


@pytest.mark.parametrize("subject", ["ann", "node:ann", "agent:", "agent:a b", "account:x\n", ""])
async def test_only_agents_and_accounts_have_budgets(node: MeshNode, subject: str) -> None:
    with pytest.raises(BadValue, match="has no budget"):
        await node.rhythm.budgets.set(subject, Budget(max_bu=1))


async def test_a_budget_that_is_not_set_can_not_be_shown_or_removed(node: MeshNode) -> None:
    for asked in (node.rhythm.budgets.show("agent:nobody"), node.rhythm.budgets.remove("agent:nobody")):
        with pytest.raises(NotKnown, match="agent:nobody has no budget"):
            await asked
    with pytest.raises(BadValue, match="charge_to"):
        await node.rhythm.budgets.set("agent:ann", Budget(charge_to="x"))
