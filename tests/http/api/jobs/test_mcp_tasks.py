"""Tasks over HTTP: created, followed, answered and cancelled by their ids."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import pytest

from tests.support.messages.messaging import PATIENCE_S
from tests.support.messages.relaying import assert_problem
from tests.support.nodes.serving import READ_TOKEN, ServedNode
from vox_mesh.jobs.work.reports import Report, failed, needs_input, succeeded
from vox_mesh.model.jobs.question import Question

pytestmark = pytest.mark.asyncio(loop_scope="module")

_AMY = {"Vox-Agent": "amy"}


async def create(served: ServedNode, kind: str, **more: Any) -> dict[str, Any]:
    """Have an agent create a task."""
    body = {"manifest": {"kind": kind}, **more}
    answer = await served.ask("POST", "/v1/tasks", body, headers=_AMY)
    assert answer.status_code == HTTPStatus.CREATED, answer.text
    created: dict[str, Any] = answer.json()
    return created


async def work(served: ServedNode, kind: str, report: Report) -> None:
    """Take the job, and report this about it."""
    (taken,) = await served.node.work.take("worker", [kind], wait=PATIENCE_S)
    await served.node.work.report(taken.job, taken.claim_token, report)


async def test_a_task_is_followed_to_the_result_of_its_job(served: ServedNode, kind: str) -> None:
    task = await create(served, kind)
    assert (task["status"], task["ttl_ms"], task["result"]) == ("working", None, None)
    path = f"/v1/tasks/{task['task_id']}"
    assert await served.get(path) == task
    waiting = asyncio.create_task(served.get(path, wait="50s"))
    await work(served, kind, succeeded([1, "two"]))
    done = await waiting
    assert (done["status"], done["is_error"], done["result"]) == ("completed", False, [1, "two"])
    assert done["job_id"] == task["job_id"]
    assert await served.post(f"{path}/cancel") == done


async def test_a_failed_job_is_a_result_and_an_aborted_one_is_cancelled(
    served: ServedNode, kind: str
) -> None:
    first, second = [await create(served, kind, new=True) for _ in range(2)]
    assert (await served.post(f"/v1/tasks/{second['task_id']}/cancel"))["status"] == "cancelled"
    await work(served, kind, failed("no disk", retry=False))
    ended = await served.get(f"/v1/tasks/{first['task_id']}")
    assert (ended["status"], ended["is_error"], ended["reason"]) == ("completed", True, "no disk")


async def test_a_question_is_answered_by_its_id(served: ServedNode, kind: str) -> None:
    path = f"/v1/tasks/{(await create(served, kind))['task_id']}"
    await work(served, kind, needs_input(Question("Which?", choices=["a", "b"])))
    asked = await served.get(path, wait="50s")
    assert (asked["status"], asked["question"]["text"]) == ("input_required", "Which?")
    question_id = asked["question"]["question_id"]
    wrong = await served.ask("POST", f"{path}/answer", {"question_id": question_id, "answer": "c"})
    assert_problem(wrong, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_value")
    assert await served.post(f"{path}/answer", {"question_id": "another", "answer": "a"}) == asked
    answered = await served.post(f"{path}/answer", {"question_id": question_id, "answer": "b"})
    assert (answered["status"], answered["question"]) == ("working", None)


async def test_a_job_that_exists_and_an_unknown_task_are_refused(served: ServedNode, kind: str) -> None:
    task = await create(served, kind)
    again = await served.ask("POST", "/v1/tasks", {"manifest": {"kind": kind}})
    assert_problem(again, HTTPStatus.CONFLICT, "refused")
    assert again.json()["reason"] == "job_not_new"
    unknown = await served.ask("GET", f"/v1/tasks/{'a' * 32}")
    assert_problem(unknown, HTTPStatus.NOT_FOUND, "not_known")
    reading = await served.ask("GET", f"/v1/tasks/{task['task_id']}", token=READ_TOKEN)
    assert reading.status_code == HTTPStatus.FORBIDDEN
