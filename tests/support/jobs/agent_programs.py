"""Agents in processes of their own, which take jobs and report them and may be killed at any moment.

`python -m tests.support.jobs.agent_programs JOB`, with the settings in the environment. Which jobs an agent
takes is written to a file before anything else is done. A job whose payload says so is held, at its first
attempt, until the test has decided what becomes of its agent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import httpx

from tests.support.messages.message_programs import Lines
from tests.support.running.jobs import report
from vox_mesh import Mesh
from vox_mesh.errors import MeshError
from vox_mesh.http.api.performer import AGENT_HEADER
from vox_mesh.jobs.work.reports import succeeded
from vox_mesh.views.work import TakenView

HELD: Final = "race.held"
PLAIN: Final = "race.plain"

_WAIT: Final = 5.0
_TIMEOUT_S: Final = 60.0
_COMMAND: Final = (sys.executable, "-m", "vox_mesh.cli")
_EITHER: Final = (HELD, PLAIN)

Task = dict[str, Any]
Taken = dict[str, Any]
Take = Callable[[], Awaitable[list[Taken]]]
Report = Callable[[Taken], Awaitable[str | None]]
"""Reports a success; returns the code of the refusal, or `None`."""


async def _work(task: Task, take: Take, tell: Report) -> None:
    begun = Lines(task["path"])
    while True:
        for taken in await take():
            begun.add(taken["job_id"], taken["claim_token"], taken["node_id"])
            report(took=taken["job_id"])
            if taken["kind"] == HELD and taken["attempt"] == 1:
                await asyncio.to_thread(sys.stdin.readline)
            report(reported=taken["job_id"], code=await tell(taken))


async def by_http(task: Task) -> None:
    """Speak to the node over its socket."""
    transport = httpx.AsyncHTTPTransport(uds=task["socket"])
    headers = {AGENT_HEADER: task["agent"]}
    async with httpx.AsyncClient(
        transport=transport, base_url="http://node", headers=headers, timeout=_TIMEOUT_S
    ) as node:

        async def take() -> list[Taken]:
            wanted = {"kinds": _EITHER, "wait": _WAIT, "lease": task["lease"]}
            answer = await node.post("/v1/jobs/take", json=wanted)
            taken: list[Taken] = answer.raise_for_status().json()
            return taken

        async def tell(taken: Taken) -> str | None:
            said = {"claim_token": taken["claim_token"], "outcome": "succeeded"}
            answer = await node.post(f"/v1/jobs/{taken['job_id']}/report", json=said)
            return None if answer.is_success else answer.json()["code"]

        await _work(task, take, tell)


async def by_python(task: Task) -> None:
    """Be a node, and take jobs in this process."""
    async with Mesh.open() as mesh:

        async def take() -> list[Taken]:
            taken = await mesh.work.take(task["agent"], _EITHER, wait=_WAIT, lease=task["lease"])
            return [vars(TakenView.of(each)) for each in taken]

        async def tell(taken: Taken) -> str | None:
            try:
                await mesh.work.report(taken["job_id"], taken["claim_token"], succeeded())
            except MeshError as error:
                return error.code
            return None

        await _work(task, take, tell)


async def by_commands(task: Task) -> None:
    """Run `job take` and `job report`."""

    async def take() -> list[Taken]:
        options = ("--agent", task["agent"], "--wait", f"{_WAIT}s", "--lease", f"{task['lease']}s", "--json")
        _, said, _ = await _ran("job", "take", *_EITHER, *options)
        taken: list[Taken] = json.loads(said or "[]")
        return taken

    async def tell(taken: Taken) -> str | None:
        code, _, error = await _ran(
            *("job", "report", taken["job_id"], "succeeded"), "--token", str(taken["claim_token"])
        )
        return None if code == 0 else error

    await _work(task, take, tell)


async def by_run_next(task: Task) -> None:
    """Run `job run-next` with a command, for one job after the other."""
    said = "echo $VOX_JOB_ID $VOX_JOB_CLAIM_TOKEN " + f"{task['node']} >> {task['path']}"
    options = ("--agent", task["agent"], "--wait", f"{_WAIT}s", "--lease", f"{task['lease']}s")
    while True:
        code, _, _ = await _ran("job", "run-next", PLAIN, *options, "--", "sh", "-c", said)
        report(ran=code)


async def _ran(*words: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *_COMMAND, *words, stdin=asyncio.subprocess.DEVNULL, stdout=-1, stderr=-1
    )
    said, error = await process.communicate()
    sys.stderr.write(error.decode())
    return process.returncode or 0, said.decode(), error.decode()


_PROGRAMS: Final = {each.__name__: each for each in (by_http, by_python, by_commands, by_run_next)}

if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    given = json.loads(sys.argv[1])
    with suppress(BrokenPipeError):
        asyncio.run(_PROGRAMS[given["verb"]](given))
