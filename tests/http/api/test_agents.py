"""Agents over HTTP."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import pytest

from tests.support.messages.relaying import assert_problem
from tests.support.nodes.printing import commands_of, printed, timeless
from tests.support.nodes.serving import ServedNode
from vox_mesh.model.rhythm.budgets import Budget
from vox_mesh.store.acting import acting_as

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_agents_come_in_pages_and_as_the_command_shows_them(served: ServedNode) -> None:
    lock = await served.node.locks.acquire("task:release", agent="coder", ttl=60)
    await served.node.messages.send("critic", "look", sender="writer")
    await served.node.run_once()
    found = await served.all("/v1/agents", limit=1)
    states = [(each["agent_id"], each["state"], each["locks"]) for each in found]
    assert states == [("coder", "alive", ["task:release"]), ("writer", "alive", [])]
    ages = {"age_ms": 0}
    assert [each | ages for each in found] == [each | ages for each in await printed(served, "agents")]
    page = await served.get("/v1/agents/writer")
    assert {name: page[name] for name in found[1]} | ages == found[1] | ages
    await served.node.locks.release(lock)


async def test_the_page_of_an_agent_has_all_that_concerns_it(served: ServedNode, kind: str) -> None:
    node, agent = served.node, f"busy-{kind}"
    await node.rhythm.budgets.set(f"agent:{agent}", Budget(max_tokens=1_000, reserve={"tokens": 300}))
    lock = await node.locks.acquire(f"task:{kind}", agent=agent, ttl=60)
    await node.messages.send(agent, "one", sender="writer")
    await node.messages.send("critic", "two", sender=agent)
    with acting_as(agent):
        job = await node.jobs.schedule(kind)
        later = await node.jobs.schedule(f"{kind}.later")
        (taken,) = await node.work.take(agent, [kind])
        used = {"input_tokens": 40, "output_tokens": 2, "model": "<b>own</b>"}
        await node.work.progress(job, taken.claim_token, usage=used)
    await node.run_once()
    page = await served.get(f"/v1/agents/{agent}")
    assert [each["lock_key"] for each in page["held_locks"]] == [f"task:{kind}"]
    assert [each["job_id"] for each in page["taken"]] == [job.job_id]
    assert {each["job_id"] for each in page["scheduled"]} == {job.job_id, later.job_id}
    assert (page["unread"], page["unacknowledged"], page["awaiting_acknowledgement"]) == (1, 0, 1)
    limit = {"resource": "tokens", "most": "1000", "spent": "42", "reserved": "258", "currency": None}
    assert page["budget"] == [limit]
    (spent,) = page["spend"]
    assert (spent["model"], spent["today"]["unpriced_tokens"]) == ("<b>own</b>", 42)
    assert spent["today"] == spent["month"]
    assert [each["capabilities"] for each in page["granted"]] == [["can *"]]
    done = [(each["kind"], each["accepted"]) for each in page["last_actions"]]
    assert done == [
        ("ChargeTokens", True),
        *[(name, True) for name in ("StartWork", "ClaimWork", "ScheduleJob", "ScheduleJob")],
    ]
    assert timeless(await printed(served, "agents", "show", agent)) == timeless(page)
    shown = (await asyncio.to_thread(commands_of(served), "agents", "show", agent)).out
    assert "  <b>own</b>  40 in/2 out (42 unpriced)" in shown
    await node.locks.release(lock)


async def test_an_agent_that_never_acted_is_not_known(served: ServedNode) -> None:
    assert_problem(await served.ask("GET", "/v1/agents/nemo"), HTTPStatus.NOT_FOUND, "not_known")
