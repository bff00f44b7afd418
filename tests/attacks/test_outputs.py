"""Agents that try to read outputs of jobs that do not concern them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio

from tests.support.messages.relaying import assert_problem
from tests.support.nodes.serving import ServedNode, serving_api
from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.nodes.signing import SigningAgent, admitted
from tools.homes import FILE
from vox_mesh.jobs.work.reports import Report, ReportedOutcome
from vox_mesh.model.jobs.records import Job
from vox_mesh.store import new_key

pytestmark = pytest.mark.asyncio(loop_scope="module")

_READS: Final = ("result", "artifacts/page.txt", "logs", "bundle")
"""What is read of the outputs of a job."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServedNode]:
    """The owner's node."""
    shared_mesh = SharedMesh(FILE, tmp_path_factory.mktemp("mesh"), None, new_key())
    async with serving_api(shared_mesh) as served:
        yield served


async def _done(served: ServedNode, kind: str, agent: str = "eve") -> Job:
    """A job that an agent has done, with a result, a log and an artifact."""
    node = served.node
    job = await node.jobs.schedule(kind, {"n": new_key()})
    (taken,) = await node.work.take(agent, [kind])
    await node.work.log(job.job_id, taken.claim_token, "secret")
    await node.work.keep(job.job_id, taken.claim_token, "page.txt", b"secret")
    return await node.work.report(
        job.job_id, taken.claim_token, Report(ReportedOutcome.SUCCEEDED, result="secret")
    )


async def _statuses(agent: SigningAgent, job: Job) -> set[int]:
    return {(await agent.ask("GET", f"/v1/jobs/{job.job_id}/{what}")).status_code for what in _READS}


async def _assert_refused(agent: SigningAgent, job: Job) -> None:
    for what in _READS:
        assert_problem(await agent.ask("GET", f"/v1/jobs/{job.job_id}/{what}"), 403, "not_granted")


@pytest.mark.parametrize(
    "line",
    ["job.take kind out.own", "job.schedule kind out.own", "job.exec program true", "ask job.schedule"],
)
async def test_an_agent_reads_no_outputs_of_kinds_that_its_grant_does_not_name(
    served: ServedNode, line: str
) -> None:
    agent = await admitted(served, new_key(), [line])
    await _assert_refused(agent, await _done(served, "out.secret"))
    with_read = await admitted(served, new_key(), [line, "mesh.read"])
    assert await _statuses(with_read, await _done(served, "out.secret")) == {200}
    reader = await admitted(served, new_key(), ["mesh.read"])
    await _assert_refused(reader, await _done(served, "out.own"))
    if line.endswith("kind out.own"):
        assert await _statuses(agent, await _done(served, "out.own")) == {200}


async def test_an_agent_reads_what_it_scheduled_took_or_was_given(served: ServedNode) -> None:
    node = served.node
    agent = await admitted(served, "giver", ["job.schedule kind out.asked", "job.take kind out.next"])
    asked = await agent.ask("POST", "/v1/jobs", {"manifests": [{"kind": "out.asked"}]})
    (taken,) = await node.work.take("eve", ["out.asked"])
    await node.work.report(
        asked.json()[0]["job_id"], taken.claim_token, Report(ReportedOutcome.SUCCEEDED, result="done")
    )
    path = f"/v1/jobs/{asked.json()[0]['job_id']}/result"
    assert (await agent.ask("GET", path)).json()["result"] == "done"

    first = await _done(served, "out.first")
    await _assert_refused(agent, first)
    job = await node.jobs.schedule("out.next", after=[first])
    await _assert_refused(agent, first)
    answer = await agent.ask("POST", "/v1/jobs/take", {"kinds": ["out.next"]})
    assert [each["job_id"] for each in answer.json()] == [job.job_id], answer.text
    assert await _statuses(agent, first) == {200}
    report = {"claim_token": answer.json()[0]["claim_token"], "outcome": "succeeded"}
    assert (await agent.ask("POST", f"/v1/jobs/{job.job_id}/report", report)).is_success
    await _assert_refused(agent, first)


async def test_an_agent_schedules_no_job_that_would_be_given_what_it_may_not_read(
    served: ServedNode,
) -> None:
    lines = ["job.schedule kind out.own", "job.take kind out.own", "cron.add", "rule.add"]
    agent = await admitted(served, "schemer", lines)
    secret, own = await _done(served, "out.secret"), await _done(served, "out.own")
    for name in (secret.job_id, secret.job_id[:12], secret.ulid):
        manifest = {"kind": "out.own", "after": [name]}
        for defer in (False, True):
            body = {"manifests": [manifest], "defer": defer}
            assert_problem(await agent.ask("POST", "/v1/jobs", body), 403, "not_granted")
    cron = {"expression": "* * * * *", "manifest": {"kind": "out.own", "after": [secret.job_id]}}
    assert_problem(await agent.ask("PUT", "/v1/crons/steal", cron), 403, "not_granted")
    rule = {"op_kind": "com.example.x", "manifest": cron["manifest"]}
    assert_problem(await agent.ask("PUT", "/v1/rules/steal", rule), 403, "not_granted")
    ulid = new_key()
    batch = [{"kind": "out.own", "ulid": ulid}, {"kind": "out.own", "after": [ulid, own.job_id]}]
    answer = await agent.ask("POST", "/v1/jobs", {"manifests": batch})
    assert answer.is_success, answer.text
