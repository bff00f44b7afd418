"""Agents work over HTTP: they take jobs, renew, report, and wait for messages."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import httpx
import pytest

from tests.support.messages.messaging import PATIENCE_S
from tests.support.messages.relaying import assert_problem
from tests.support.nodes.serving import ServedNode

pytestmark = pytest.mark.asyncio(loop_scope="module")

_CODER = {"Vox-Agent": "coder"}


async def post(served: ServedNode, path: str, body: dict[str, Any], agent: str = "coder") -> Any:
    """Send a request for an agent, and return the answer."""
    answer = await served.ask("POST", path, body=body, headers={"Vox-Agent": agent})
    assert answer.status_code == HTTPStatus.OK, answer.text
    return answer.json()


async def test_an_agent_works_on_a_job_from_take_to_report(served: ServedNode, kind: str) -> None:
    job = await served.node.jobs.schedule(kind, {"n": 1})
    (taken,) = await post(served, "/v1/jobs/take", {"kinds": [kind], "lease": "30s"})
    assert (taken["job_id"], taken["payload"], taken["agent"]) == (job.job_id, {"n": 1}, "coder")
    assert (taken["node_id"], taken["attempt"]) == (served.node.identity.node_id, 1)
    await served.node.jobs.schedule(kind, {"n": 2})
    with_tags = {"manifests": [{"kind": f"{kind}.tagged", "tags": ["gpu"]}]}
    await post(served, "/v1/jobs", with_tags)
    takes = [{"kinds": [f"{kind}.tagged"], "tags": tags} for tags in ([], ["gpu", "arm"])]
    assert [len(await post(served, "/v1/jobs/take", each)) for each in takes] == [0, 1]
    assert await post(served, "/v1/jobs/take", {"kinds": [kind], "capacity": 1}) == []
    path, claim = f"/v1/jobs/{job.job_id}", {"claim_token": taken["claim_token"]}
    renewed = await post(served, f"{path}/renew", {**claim, "lease": "60s"})
    assert renewed["lease_until_ms"] > taken["lease_until_ms"]
    await post(served, f"{path}/progress", {**claim, "fraction": 0.5, "checkpoint": {"at": 3}})
    await post(served, f"{path}/log", {**claim, "text": "half"})
    kept = await post(served, f"{path}/artifacts", {**claim, "name": "notes", "text": "all is well"})
    assert (kept["name"], kept["size"], kept["type"]) == ("notes", 11, "text/plain")
    usage = {"input_tokens": 900, "output_tokens": 80, "model": kind}
    await post(served, f"{path}/progress", {**claim, "usage": usage})
    report = {**claim, "outcome": "succeeded", "result": [1, 2], "usage": usage}
    assert (await post(served, f"{path}/report", report))["state"] == "succeeded"
    assert (await post(served, f"{path}/report", report))["state"] == "succeeded"  # its answer was lost
    assert (await served.get(f"{path}/result"))["result"] == [1, 2]
    (spent,) = [each for each in await served.get("/v1/budgets/tokens?agent=coder") if each["kind"] == kind]
    assert (spent["model"], spent["agent"], spent["account"]) == (kind, "coder", "")
    assert spent["tokens"] == {
        "currency": None,  # the node knows no prices, which is not the same as 0
        "money": None,
        "input_tokens": 1_800,
        "output_tokens": 160,
        "unpriced_tokens": 1_960,
    }
    proof = await served.get(f"{path}/verify")
    bundle = await served.get(f"{path}/bundle")
    assert (proof["faults"], bundle["proof"]["envelope"]["agent"]) == ([], "coder")
    late = await served.ask("POST", f"{path}/report", body={**claim, "outcome": "failed", "reason": "no"})
    assert_problem(late, HTTPStatus.CONFLICT, "stale_claim")
    assert "take another" in late.json()["hint"]


async def test_an_agent_reports_and_takes_the_next_job_in_one_request(served: ServedNode, kind: str) -> None:
    first, second = [await served.node.jobs.schedule(kind, {"n": n}) for n in (1, 2)]
    (taken,) = await post(served, "/v1/jobs/take", {"kinds": [kind]}, "next")
    path = f"/v1/jobs/{first.job_id}/next"
    report = {"claim_token": taken["claim_token"], "outcome": "succeeded"}
    take = {"kinds": [kind], "capacity": 1, "request_id": "second"}
    unnamed = await served.ask("POST", path, {**report, "take": take})
    assert_problem(unnamed, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_value")  # and nothing is reported
    answers = [await post(served, path, {**report, "take": take}, "next") for _ in range(2)]  # one is lost
    assert answers[0] == answers[1]
    assert (answers[0]["job_id"], answers[0]["state"]) == (first.job_id, "succeeded")
    (taken,) = answers[0]["taken"]
    assert (taken["job_id"], taken["payload"], taken["agent"]) == (second.job_id, {"n": 2}, "next")
    stale = {"claim_token": taken["claim_token"] + 1, "outcome": "succeeded", "take": {"kinds": [kind]}}
    third = await served.node.jobs.schedule(kind, {"n": 3})
    late = await served.ask("POST", f"/v1/jobs/{second.job_id}/next", stale, headers={"Vox-Agent": "next"})
    assert_problem(late, HTTPStatus.CONFLICT, "stale_claim")
    assert (await served.node.jobs.find(third.job_id)).state == "pending"  # nothing is taken then
    last = {"claim_token": taken["claim_token"], "outcome": "failed", "reason": "no", "retry": False}
    last["take"] = {"kinds": ["other.*"]}
    ended = await post(served, f"/v1/jobs/{second.job_id}/next", last, "next")
    assert (ended["state"], ended["taken"]) == ("failed", [])


async def test_a_take_waits_and_one_whose_client_has_gone_gets_nothing(served: ServedNode, kind: str) -> None:
    body = {"kinds": [kind], "wait": 30}
    with pytest.raises(httpx.ReadTimeout):
        await served.ask("POST", "/v1/jobs/take", body, headers={"Vox-Agent": "gone"}, timeout=0.5)
    waiting = asyncio.create_task(post(served, "/v1/jobs/take", body, "patient"))
    await asyncio.sleep(0)
    job = await served.node.jobs.schedule(kind)
    async with asyncio.timeout(PATIENCE_S):
        (taken,) = await waiting
    assert (taken["job_id"], taken["agent"]) == (job.job_id, "patient")  # the other one gave it back
    answer = await served.ask(
        "POST",
        f"/v1/jobs/{job.job_id}/report",
        body={"claim_token": taken["claim_token"], "outcome": "succeeded"},
        headers=_CODER,
    )
    assert_problem(answer, HTTPStatus.FORBIDDEN, "not_its_agent")


async def test_wrong_requests_of_agents_are_refused(served: ServedNode, kind: str) -> None:
    unnamed = await served.ask("POST", "/v1/jobs/take", {"kinds": [kind]})
    assert_problem(unnamed, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_value")
    bodies: list[dict[str, Any]] = [{"count": 0}, {"wait": 61}, {"lease": "1ms"}, {"kinds": []}, {"more": 1}]
    for nonsense in bodies:
        answer = await served.ask("POST", "/v1/jobs/take", nonsense, headers=_CODER)
        assert_problem(answer, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_body")
    await served.node.jobs.schedule(kind)
    (taken,) = await post(served, "/v1/jobs/take", {"kinds": [kind]})
    path, claim = f"/v1/jobs/{taken['job_id']}", {"claim_token": taken["claim_token"]}
    for part, wrong in (
        ("report", {"outcome": "failed"}),
        ("artifacts", {"name": "a", "base64": "?"}),
    ):
        answer = await served.ask("POST", f"{path}/{part}", {**claim, **wrong}, headers=_CODER)
        assert_problem(answer, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_value")


async def test_an_agent_waits_for_its_messages(served: ServedNode) -> None:
    assert await served.get("/v1/inbox/listener/wait", timeout=0) == []
    waiting = asyncio.create_task(served.get("/v1/inbox/listener/wait", timeout=30))
    await asyncio.sleep(0)
    await served.node.messages.send("listener", {"text": "hello"}, sender="coder")
    async with asyncio.timeout(PATIENCE_S):
        (message,) = await waiting
    assert (message["payload"], message["state"]) == ({"text": "hello"}, "stored")


async def test_an_agent_asks_and_a_person_answers(served: ServedNode, kind: str) -> None:
    job = await served.node.jobs.schedule(kind)
    (taken,) = await post(served, "/v1/jobs/take", {"kinds": [kind]})
    path, claim = f"/v1/jobs/{job.job_id}", {"claim_token": taken["claim_token"]}
    unasked = await served.ask("POST", f"{path}/report", {**claim, "outcome": "needs_input"}, headers=_CODER)
    assert_problem(unasked, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_value")
    question = {"text": "How many?", "schema": {"type": "integer"}, "to": "lead", "expires": "1h"}
    asked = await post(served, f"{path}/report", {**claim, "outcome": "needs_input", "question": question})
    assert (asked["state"], asked["waits"]) == ("pending", 1)
    (listed,) = await served.get("/v1/jobs/questions", to="lead")
    assert (listed["job_id"], listed["text"], listed["schema"]) == (
        job.job_id,
        "How many?",
        {"type": "integer"},
    )
    answered = await post(served, f"{path}/answer", {"answer": 3}, "lead")
    assert answered["answered_by"] == "lead"
    again = await served.ask("POST", f"{path}/answer", {"answer": 4})
    assert_problem(again, HTTPStatus.CONFLICT, "refused")
    assert again.json()["reason"] == "already_answered"
    (taken,) = await post(served, "/v1/jobs/take", {"kinds": [kind], "wait": 30})
    assert (taken["answer"], taken["attempt"]) == (3, 2)
