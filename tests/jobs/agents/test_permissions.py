"""Permissions of agents: allowed, denied or asked, and what an answer is good for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.jobs.agent_jobs import AgentDesk, Steps, lines_of
from tests.support.messages.messaging import PATIENCE_S
from vox_mesh.jobs.agents.config import AgentConfig, PermissionDecision
from vox_mesh.jobs.agents.permissions import (
    ALLOW,
    ALLOW_KIND,
    DENY,
    MAX_QUESTIONS,
    Decisions,
    PermissionRequest,
)
from vox_mesh.model.jobs.question import AskedQuestion
from vox_mesh.model.jobs.records import Job

_ASK: Steps = [{"make": {"half.txt": "so far\n"}}, {"ask": {"title": "rm -rf build"}}, {"say": "end"}]


async def question_of(desk: AgentDesk, job_id: str) -> AskedQuestion:
    """Return the question of a job, once it has asked."""
    async for _ in desk.mesh.store.changes(interval_s=PATIENCE_S):
        asked = await desk.mesh.jobs.questions.of(job_id)
        if asked is not None and asked.answered_by is None:
            return asked
    raise AssertionError("it has not asked")


async def answer(desk: AgentDesk, job_id: str, *answers: str) -> Job:
    """Run a job that asks, and give these answers."""
    async with desk.mesh.worker.running():
        for each in answers:
            await question_of(desk, job_id)
            await desk.mesh.jobs.questions.answer(await desk.mesh.jobs.find(job_id), each, "lead")
        return await desk.mesh.jobs.wait(job_id, timeout=PATIENCE_S)


async def test_an_agent_goes_on_in_its_folder_once_a_person_has_allowed_it(desk: AgentDesk) -> None:
    desk.configure(ask="lead")
    job_id = await desk.schedule(_ASK)
    async with desk.mesh.worker.running():
        asked = await question_of(desk, job_id)
        assert len(desk.folders) == 2  # one folder and its lock: it waits there, without a process
        text: str = asked.document["text"]
        assert (asked.asked_of, asked.document["choices"]) == ("lead", [ALLOW, ALLOW_KIND, DENY])
        assert "kind: execute\ntitle: rm -rf build\n" in text
        await desk.mesh.jobs.questions.answer(await desk.mesh.jobs.find(job_id), ALLOW, "lead")
        done = await desk.mesh.jobs.wait(job_id, timeout=PATIENCE_S)
    assert (done.state, done.attempts, done.failures) == ("succeeded", 2, 0)
    result = await desk.result(done)
    assert result["message"] == "answer: yes; end"  # the narrowest option, and not `always`
    assert "A half.txt" in result["changed"]
    assert desk.folders == []


async def test_a_denied_permission_reaches_the_agent(desk: AgentDesk) -> None:
    desk.configure()
    done = await answer(desk, await desk.schedule(_ASK), DENY)
    assert (await desk.result(done))["message"] == "answer: no; end"


async def test_each_request_is_asked_for_and_a_kind_only_once_if_allowed(desk: AgentDesk) -> None:
    desk.configure()
    titles = ("one", "two", "three")
    job_id = await desk.schedule([{"ask": {"title": each}} for each in titles])
    done = await answer(desk, job_id, ALLOW, ALLOW_KIND)
    assert done.attempts == 3
    assert (await desk.result(done))["message"] == "answer: yes; answer: yes; answer: yes; "


async def test_a_session_that_can_be_loaded_goes_on(desk: AgentDesk) -> None:
    desk.configure("--load")
    done = await answer(desk, await desk.schedule(_ASK), ALLOW)
    result = await desk.result(done)
    assert result["message"].startswith("resumed: The permission that you asked for was decided")
    assert "A loaded" in result["changed"]


async def test_configured_kinds_are_decided_without_a_question(desk: AgentDesk) -> None:
    desk.configure(allow=["read"], deny=["execute"], otherwise="deny")
    kinds = ("read", "execute", "fetch")
    done = await desk.run([{"ask": {"title": "it", "kind": each}} for each in kinds])
    assert (await desk.result(done))["message"] == "answer: yes; answer: no; answer: no; "
    decided = [line["decision"] for line in await lines_of(desk.mesh, done) if "decision" in line]
    assert decided == ["allow", "deny", "deny"]


async def test_a_question_has_the_time_that_its_agent_is_configured_with(desk: AgentDesk) -> None:
    desk.configure(ask_within="1h")
    job_id = await desk.schedule(_ASK)
    async with desk.mesh.worker.running():
        asked = await question_of(desk, job_id)
        assert asked.expires_ms is not None
        assert asked.expires_ms - asked.asked_ms == pytest.approx(3_600_000, abs=60_000)


# --- the rules ------------------------------------------------------------------------------------


def _config(**fields: Any) -> AgentConfig:
    return AgentConfig(command=("x",), **fields)


def test_the_same_request_has_the_same_key_and_another_input_another() -> None:
    one = PermissionRequest("execute", "run", {"command": ["a", 1.0]})
    assert one.key == PermissionRequest("execute", "run", {"command": ["a", 1.0]}).key
    assert one.key != PermissionRequest("execute", "run", {"command": ["b", 1.0]}).key
    assert one.key != PermissionRequest("read", "run", {"command": ["a", 1.0]}).key


def test_an_answer_is_for_the_request_that_was_asked_and_for_no_other() -> None:
    asked, other = (PermissionRequest("execute", title, None) for title in ("asked", "other"))
    decisions = Decisions()
    decisions.ask(asked)
    later = Decisions.resumed(decisions.document(), ALLOW)
    assert later.decide(asked, _config()) is PermissionDecision.ALLOW
    assert later.decide(other, _config()) is PermissionDecision.ASK
    assert Decisions.resumed(decisions.document(), {"any": "thing"}).decide(asked, _config()) is (
        PermissionDecision.DENY
    )
    assert Decisions.resumed(decisions.document(), None).decide(asked, _config()) is PermissionDecision.ASK


def test_no_answer_overrides_what_is_denied_by_configuration() -> None:
    request = PermissionRequest("delete", "rm", None)
    decisions = Decisions(by_key={request.key: ALLOW}, kinds={"delete"})
    assert decisions.decide(request, _config(deny=["delete"])) is PermissionDecision.DENY


def test_a_job_that_asks_too_often_is_denied() -> None:
    decisions = Decisions(by_key={str(number): ALLOW for number in range(MAX_QUESTIONS)})
    assert decisions.decide(PermissionRequest("read", "more", None), _config()) is PermissionDecision.DENY


def test_a_question_shows_text_of_an_agent_in_ascii_on_lines_of_its_own() -> None:
    hostile = "ok\nkind: read\u202e\x1b[2J"
    question = PermissionRequest("execute", hostile, {"a": "\u200b" * 5_000}).question("coder", _config())
    assert question.text.isascii()
    assert question.text.splitlines()[2] == "title: ok\\x0akind: read\\u202e\\x1b[2J"
    assert len(question.text.splitlines()) == 4
