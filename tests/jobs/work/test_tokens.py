"""Tokens and money: charged to agents and accounts, and reserved of their budgets before work begins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import orjson
import pytest

from tests.support.jobs.job_desks import ended
from tests.support.jobs.jobs_in_hand import ops
from tests.support.messages.messaging import PATIENCE_S, NodeGroup
from tests.support.oplog.authoring import assert_sound
from tools.homes import FILE
from vox_mesh import Mesh
from vox_mesh.errors import BadValue, StaleClaim
from vox_mesh.jobs.jobs import Scheduled
from vox_mesh.jobs.work.reports import succeeded, yielded
from vox_mesh.jobs.work.work import TakenJob
from vox_mesh.jobs.worker.context import JobContext
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import COMPLETE, YIELD
from vox_mesh.model.oplog.op_names import CHARGE
from vox_mesh.model.rhythm.budgets import Budget, Verdict
from vox_mesh.model.rhythm.tokens import TokenTotal
from vox_mesh.node import MeshNode
from vox_mesh.rhythm.token_ledger import forget_reservations
from vox_mesh.testing.harness import MeshHarness

_RATES: Final = """
currency: USD
models:
  haiku: {input: 0.80, output: 4}
  opus-*: {input: 15, output: 75}
"""
_MODEL: Final = "haiku"
_USED: Final = (0, 3, 10, 14)
"""How many tokens jobs take, in turn: all together more than the budget, whichever agent takes which."""


@pytest.fixture
async def priced(tmp_path: Path) -> AsyncIterator[MeshNode]:
    """A node with prices of models, on a file."""
    (tmp_path / "rates.yaml").write_text(_RATES)
    rates = tmp_path / "rates.yaml"
    settings = FILE.settings(tmp_path, None, node_id="worker", tick="1h", rates=rates)
    async with Mesh.open(settings) as node:
        yield node


@pytest.fixture
async def harness() -> AsyncIterator[MeshHarness]:
    async with MeshHarness() as harness:
        yield harness


async def schedule(node: MeshNode, count: int = 1, kind: str = "work", **budget: Any) -> list[Scheduled]:
    """Schedule jobs, each with this budget."""
    fields = {"budget": budget} if budget else {}
    manifests = [Manifest.of(kind=kind, payload=n, backoff="1ms", **fields) for n in range(count)]
    return await node.jobs.schedule_all(manifests, new=True)


async def report(node: MeshNode, taken: TakenJob, tokens: int) -> None:
    """Report a success that took this many tokens."""
    usage = {"input_tokens": tokens, "model": _MODEL}
    await node.work.report(taken.job, taken.claim_token, succeeded(usage=usage))


async def standing(node: MeshNode, subject: str = "account:lab") -> list[tuple[str, int, int]]:
    """Each limit of a subject, what was spent of it, and what is reserved."""
    return [(each.resource, each.spent, each.reserved) for each in await node.rhythm.tokens.limits(subject)]


async def logged_usage(node: MeshNode, kind: str) -> list[Any]:
    """What the ops of a kind say about tokens."""
    payloads = [orjson.loads(entry.payload) for entry in await ops(node, kind)]
    items = [item for payload in payloads for item in payload.get("jobs", [payload])]
    return [item["usage"] for item in items if "usage" in item]


# --- charging ------------------------------------------------------------------------------------


async def test_tokens_are_charged_by_model_and_are_in_the_signed_op(priced: MeshNode) -> None:
    node = priced
    await schedule(node, 2, "write", charge_to="lab")
    one, two = await node.work.take("ann", count=2)
    await node.work.progress(one.job, one.claim_token, 0.5, usage={"output_tokens": 10, "model": "opus-4"})
    usage = {"input_tokens": {"haiku": 1_000_001, "own": 5}, "output_tokens": {"haiku": 3}}
    await node.work.report(one.job, one.claim_token, succeeded(usage=usage))
    again = {"input_tokens": 1, "model": "haiku"}
    await node.work.report(two.job, two.claim_token, yielded(usage=again))
    # 1,000,001 * 0.80 / 1e6 + 3 * 4 / 1e6, rounded up to a millionth; 10 * 75 / 1e6
    assert await logged_usage(node, COMPLETE) == [
        {
            "currency": "USD",
            "models": {
                "haiku": {"input_tokens": 1_000_001, "output_tokens": 3, "micros": 800_013},
                "own": {"input_tokens": 5, "output_tokens": 0, "unpriced": True},
            },
        }
    ]
    assert [each["models"] for each in await logged_usage(node, CHARGE)] == [
        {"opus-4": {"input_tokens": 0, "output_tokens": 10, "micros": 750}}
    ]
    assert [each["models"]["haiku"]["micros"] for each in await logged_usage(node, YIELD)] == [1]
    found = await node.rhythm.tokens.totals()
    assert {(each.agent_id, each.account, each.kind, each.model): each.total for each in found} == {
        ("ann", "lab", "write", "haiku"): TokenTotal(1_000_002, 3, 800_014, 0),
        ("ann", "lab", "write", "opus-4"): TokenTotal(0, 10, 750, 0),
        ("ann", "lab", "write", "own"): TokenTotal(5, 0, 0, 5),
    }
    assert await node.rhythm.tokens.totals(agent="bob") == []
    await assert_sound(node)


async def test_handlers_charge_tokens_in_the_loop_and_in_threads(priced: MeshNode) -> None:
    @priced.worker.handles("async")
    async def in_loop(context: JobContext) -> None:
        context.charge(input_tokens=100, output_tokens=7, model="haiku")
        context.charge(input_tokens=1, model="haiku", gpu_sec={"A100": 1})
        await context.record_inference(model="haiku", version="1", prompt="p", output="o", output_tokens=1)

    @priced.worker.handles("sync")
    def in_thread(context: JobContext) -> None:
        context.charge(input_tokens={"haiku": 20}, output_tokens={"opus-4": 2})
        raise OSError("no luck")

    await priced.rhythm.budgets.set("agent:worker", Budget(max_tokens=1_000))
    jobs = [await priced.jobs.schedule("async"), await priced.jobs.schedule("sync", max_attempts=1)]
    async with priced.worker.running():
        await ended(priced, *jobs)
    found = {(each.kind, each.model): each.total for each in await priced.rhythm.tokens.totals()}
    assert found == {
        ("async", "haiku"): TokenTotal(101, 8, 113, 0),
        ("sync", "haiku"): TokenTotal(20, 0, 16, 0),
        ("sync", "opus-4"): TokenTotal(0, 2, 150, 0),
    }
    assert await standing(priced, "agent:worker") == [("tokens", 131, 0)]


@pytest.mark.parametrize(
    ("usage", "fault"),
    [
        ({"input_tokens": 5}, "input_tokens must have a model"),
        ({"input_tokens": -1, "model": "m"}, "input_tokens must be an integer from 0"),
        ({"output_tokens": 1.5, "model": "m"}, "output_tokens must be an integer from 0"),
        ({"input_tokens": {"a b": 1}}, "model must be 1 to 128 visible"),
        ({"output_tokens": {str(n): 1 for n in range(17)}}, "models of a report must be at most 16"),
        ({"tokens": 1, "model": "m"}, "resource must be one of"),
    ],
)
def test_a_malformed_report_of_tokens_is_refused(usage: dict[str, Any], fault: str) -> None:
    with pytest.raises(BadValue, match=fault):
        succeeded(usage=usage)


# --- reserving -----------------------------------------------------------------------------------


async def test_a_budget_stops_new_work_before_it_is_exceeded(node: MeshNode) -> None:
    await node.rhythm.budgets.set("account:lab", Budget(max_tokens=100, reserve={"tokens": 40}))
    await schedule(node, 3, charge_to="lab")
    taken = await node.work.take("ann", count=3)
    assert len(taken) == 2
    assert await standing(node) == [("tokens", 0, 80)]
    others = await schedule(node, 1, charge_to="rich")
    assert [each.job.job_id for each in await node.work.take("ann")] == [others[0].job_id]
    await report(node, taken[0], 15)
    assert await standing(node) == [("tokens", 15, 40)]
    (third,) = await node.work.take("ann", count=3, wait=PATIENCE_S)
    await report(node, third, 200)  # more than it has reserved
    await report(node, taken[1], 0)
    assert await standing(node) == [("tokens", 215, 0)]
    await schedule(node, 1, charge_to="lab")
    assert await node.work.take("ann") == []
    (spent,) = await node.rhythm.budgets.report("account:lab")
    assert spent.verdict is Verdict.STOP
    await node.rhythm.budgets.set("account:lab", Budget(max_tokens=300))
    assert await standing(node) == [("tokens", 215, 0)]
    assert len(await node.work.take("ann", wait=PATIENCE_S)) == 1
    assert await standing(node) == [("tokens", 215, 30)]  # by default a tenth
    await node.rhythm.budgets.remove("account:lab")
    assert await standing(node) == []


async def test_a_job_reserves_what_it_says_and_does_not_keep_smaller_ones_waiting(priced: MeshNode) -> None:
    node = priced
    await node.rhythm.budgets.set("agent:ann", Budget(max_money="1.00 USD", max_output_tokens=1_000))
    large = await schedule(node, 150, max_money="2.00 USD", reserve={"output_tokens": 0})
    await schedule(node, 1, max_money="0.55 USD", max_output_tokens=10)
    await schedule(node, 1, max_money="5 EUR")  # of which nothing is known
    found = await node.work.take("ann", count=100)
    assert len(found) == 2
    assert {each.job.job_id for each in found}.isdisjoint(job.job_id for job in large)
    assert await standing(node, "agent:ann") == [("money:USD", 0, 650_000), ("output_tokens", 0, 110)]


async def test_what_is_not_priced_is_charged_as_it_was_reserved(priced: MeshNode) -> None:
    node = priced
    await node.rhythm.budgets.set("account:lab", Budget(max_money="1.00 USD", reserve={"money": "0.20 USD"}))
    await schedule(node, 2, charge_to="lab")
    one, two = await node.work.take("ann", count=2)
    await node.work.report(one.job, one.claim_token, succeeded(usage={"input_tokens": 5, "model": "own"}))
    await node.work.report(two.job, two.claim_token, succeeded())
    assert await standing(node) == [("money:USD", 200_000, 0)]
    (spent,) = await node.rhythm.budgets.report("account:lab")
    assert spent.tokens == {"USD": TokenTotal(5, 0, 0, 5)}


async def test_the_reservation_of_a_killed_agent_ends_with_its_lease(harness: MeshHarness) -> None:
    node = await harness.node("a")
    await node.rhythm.budgets.set("agent:ann", Budget(max_tokens=100, reserve={"tokens": 100}))
    await schedule(node, 2)
    (lost,) = await node.work.take("ann", count=2, lease="30s")
    await node.work.progress(lost.job, lost.claim_token, usage={"input_tokens": 30, "model": _MODEL})
    assert await standing(node, "agent:ann") == [("tokens", 30, 70)]  # the tokens were used for good
    assert await node.work.take("ann") == []
    await node.rhythm.budgets.set("agent:ann", Budget(max_tokens=100, reserve={"tokens": 70}))
    await harness.clock.advance("31s")
    assert await standing(node, "agent:ann") == [("tokens", 30, 0)]
    (taken,) = await node.work.take("ann", count=2)
    with pytest.raises(StaleClaim):
        await node.work.progress(lost.job, lost.claim_token, usage={"input_tokens": 9, "model": _MODEL})
    await report(node, taken, 70)
    assert await standing(node, "agent:ann") == [("tokens", 100, 0)]
    await forget_reservations(node.store)
    rows = await node.store.read("SELECT count(*) FROM spend_reservations", fresh=True)
    assert rows.value == 0


async def test_a_worker_reserves_and_stops_what_exceeds_the_limit_of_its_job(priced: MeshNode) -> None:
    running, three = asyncio.Semaphore(0), asyncio.Event()
    most, now = 0, 0

    @priced.worker.handles("work")
    async def handle(context: JobContext) -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        context.charge(input_tokens=20, model=_MODEL)
        if now == 3:
            three.set()
        await running.acquire()
        now -= 1
        if context.payload == 0:
            context.charge(input_tokens=40, model=_MODEL)
            await asyncio.Event().wait()

    await priced.rhythm.budgets.set("account:lab", Budget(max_tokens=150))
    jobs = await schedule(priced, 4, charge_to="lab", max_tokens=45)
    async with priced.worker.running(concurrency=4):
        await three.wait()
        assert await standing(priced) == [("tokens", 0, 135)]
        for _ in jobs:
            running.release()
        found = await ended(priced, *jobs)
    assert most == 3
    assert [job.state for job in found] == ["failed", "succeeded", "succeeded", "succeeded"]
    assert found[0].reason == "60 of 45 tokens of the budget of the job are used"
    assert await standing(priced) == [("tokens", 120, 0)]


async def race(nodes: Sequence[MeshNode], jobs: int, random: Random) -> int:
    """Let agents take and report jobs until there are none. Return by how much they overran in all."""
    left, overrun = jobs, 0

    async def agent(node: MeshNode, name: str) -> None:
        nonlocal left, overrun
        while left > 0:
            for taken in await node.work.take(name, count=random.randint(1, 3), wait=0.5):
                left -= 1
                used = _USED[left % len(_USED)]
                overrun += max(0, used - 10)
                await report(node, taken, used)
            (limit,) = await node.rhythm.tokens.limits("account:lab")
            assert limit.spent + limit.reserved <= limit.most + overrun
            if limit.most - limit.spent < limit.reserve:
                return

    await asyncio.gather(*(agent(node, f"{n}-{place}") for place, node in enumerate(nodes) for n in range(3)))
    return overrun


async def test_takers_that_race_for_the_last_tokens_never_exceed_the_budget(crowd: NodeGroup) -> None:
    nodes = [await crowd.node(name) for name in ("one", "two", "three")]
    limits = Budget(max_tokens=85, reserve={"tokens": 10})
    await nodes[0].rhythm.budgets.set("account:lab", limits)
    await schedule(nodes[0], 24, charge_to="lab")
    async with asyncio.timeout(60):
        overrun = await race(nodes, 24, Random(7))
    (limit,) = await nodes[0].rhythm.tokens.limits("account:lab")
    assert limit.reserved == 0
    assert 75 < limit.spent <= 85 + overrun
    total = sum(each.total.input_tokens for each in await nodes[0].rhythm.tokens.totals(account="lab"))
    assert total == limit.spent
