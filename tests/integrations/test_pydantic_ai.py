"""Pydantic AI: requests and tool calls of an agent are steps, whose results later attempts get."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.frameworks.loading import load, needs
from tests.support.messages.messaging import PATIENCE_S
from tools.homes import FILE, environment
from vox_mesh import JobContext, Mesh, MeshApp
from vox_mesh.node import MeshNode

pytestmark = needs("pydantic_ai", "pydantic-ai")

_ROOT: Final = Path(__file__).resolve().parents[2]
_CALL: Final = "researcher__function_toolset__<agent>.call_tool:look_up"
_REQUEST: Final = "researcher__model.request"


@pytest.fixture
def ai() -> Any:
    """The module with the agents, which loads Pydantic AI."""
    return load("tests.support.frameworks.durable_agents")


async def run(node: MeshNode, handler: Any, **options: Any) -> Any:
    """Run a job of this handler, and return its record."""
    node.worker.handles("agent")(handler)
    async with node.worker.running():
        job = await node.jobs.schedule("agent", backoff="10ms", **options)
        return await node.jobs.wait(job, timeout=PATIENCE_S)


async def names(node: MeshNode, job_id: str) -> list[str]:
    """Return the names of the stored steps of a job."""
    return [row.name for row in await node.jobs.steps.verified(job_id)]


async def test_a_worker_killed_between_requests_repeats_none_that_is_stored(tmp_path: Path, ai: Any) -> None:
    settings = FILE.settings(tmp_path, None, scope_id="")
    variables = {**os.environ, **environment(settings), "PYTHONPATH": str(_ROOT)}
    command = (sys.executable, "-m", ai.__name__, str(tmp_path))
    async with Mesh.open_command(settings) as mesh:
        job = await mesh.jobs.schedule(ai.KIND, lease="1s")
        codes = []
        for _ in range(2):
            process = await asyncio.create_subprocess_exec(*command, env=variables, cwd=_ROOT)
            async with asyncio.timeout(PATIENCE_S):
                codes.append(await process.wait())
        assert await mesh.jobs.result(job, timeout=PATIENCE_S) == "about bees; about ants"
    assert codes == [-9, 0]
    effects = Counter((tmp_path / "effects").read_text().splitlines())
    # Only the call in whose middle the worker was killed is made again.
    assert effects == {"model 0": 1, "tool bees": 1, "tool ants": 2, "model 2": 1}


async def test_a_later_attempt_gets_what_models_and_tools_returned(node: MeshNode, ai: Any) -> None:
    noted: list[str] = []
    ids: list[tuple[str, str]] = []
    agent = ai.researcher(noted.append, lambda topic: {"topic": topic, "seen": 2**60}, ["a", "b"])

    async def handle(context: JobContext) -> str:
        with ai.in_job(context):
            first, second = await agent.run("?"), await agent.run("again?")
        ids.extend((each.run_id, each.conversation_id) for each in (first, second))
        if context.attempt < 3:
            raise RuntimeError("not yet")
        return str(first.output)

    done = await run(node, handle, max_attempts=3)
    assert (
        await node.jobs.result(done)
        == f"{{'topic': 'a', 'seen': {2**60}}}; {{'topic': 'b', 'seen': {2**60}}}"
    )
    assert noted == ["model 0", "model 2"] * 2
    assert ids[:2] == ids[2:4] == ids[4:]
    assert len({*ids}) == 2
    assert await names(node, done.job_id) == [_REQUEST, _CALL, _CALL, _REQUEST] * 2


async def test_results_keep_their_types_in_a_typed_job(node: MeshNode, ai: Any) -> None:
    app, calls = MeshApp(), []
    agent = ai.Agent(ai.TestModel(), name="typed", output_type=ai.Report, capabilities=[ai.MeshDurability()])

    @app.job("typed", retries=1, backoff=0.01)
    async def typed(context: JobContext) -> str:
        output = (await agent.run("?")).output
        calls.append(output)
        if context.attempt == 1:
            raise RuntimeError("not yet")
        return type(output).__name__

    node.worker.handlers.include(app.handlers)
    with app.using(node):
        async with node.worker.running():
            handle = await typed.schedule()
            assert await handle.result(timeout=PATIENCE_S) == "Report"
    assert calls[0] == calls[1]


async def test_failures_of_a_step_are_tried_again_as_its_options_say(local: MeshNode, ai: Any) -> None:
    noted: list[str] = []

    def look_up(topic: str) -> str:
        noted.append(topic)
        if noted.count(topic) == 1:
            raise OSError("no line")
        raise ai.ModelRetry("another word, please")  # not a failure: the model gets it

    options = {"tool_step": {"retries": 1, "backoff": 0.01}}
    agent = ai.researcher(lambda _: None, look_up, ["bees"], **options)

    async def handle(context: JobContext) -> str:
        with ai.in_job(context):
            return str((await agent.run("?")).output)

    done = await run(local, handle)
    assert (done.state, noted) == ("succeeded", ["bees"] * 2)
    assert "another word, please" in await local.jobs.result(done)


async def test_a_long_pause_before_a_retry_suspends_the_job(local: MeshNode, ai: Any) -> None:
    def look_up(topic: str) -> str:
        raise OSError("no line")

    options = {"tool_step": {"retries": 1, "backoff": "1h"}}
    agent = ai.researcher(lambda _: None, look_up, ["bees"], **options)

    @local.worker.handles("agent")
    async def handle(context: JobContext) -> str:
        with ai.in_job(context):
            return str((await agent.run("?")).output)

    async with local.worker.running():
        job = await local.jobs.schedule("agent")
        async with asyncio.timeout(PATIENCE_S):
            async for _ in local.store.changes():
                found = await local.jobs.find(job.job_id)
                if found.attempts and found.state == "pending":
                    break
    assert found.failures == 0


async def test_a_wrong_program_fails_its_job_at_once(local: MeshNode, ai: Any) -> None:
    agent = ai.researcher(lambda _: None, lambda topic: object(), ["bees"])

    async def handle(context: JobContext) -> str:
        with ai.in_job(context):
            return str((await agent.run("?")).output)

    done = await run(local, handle, max_attempts=5)
    assert (done.state, done.attempts) == ("failed", 1)
    assert "a result has no JSON" in (done.reason or "")


async def test_an_agent_within_a_tool_is_a_part_of_the_step(local: MeshNode, ai: Any) -> None:
    inner = ai.Agent(ai.TestModel(), name="inner", capabilities=[ai.MeshDurability()])

    async def look_up(topic: str) -> str:
        return str((await inner.run(topic)).output)

    agent = ai.researcher(lambda _: None, look_up, ["bees"])

    async def handle(context: JobContext) -> str:
        with ai.in_job(context):
            return str((await agent.run("?")).output)

    done = await run(local, handle)
    assert await names(local, done.job_id) == [_REQUEST, _CALL, _REQUEST]


async def test_outside_of_a_job_an_agent_runs_as_usual(ai: Any) -> None:
    agent = ai.researcher(lambda _: None, str.upper, ["bees", "ants"])
    assert (await agent.run("?")).output == "BEES; ANTS"
