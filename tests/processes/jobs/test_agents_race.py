"""Agents by HTTP, commands and Python race for jobs; some are killed, some stopped past their lease."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.jobs.agent_programs import HELD, PLAIN
from tests.support.jobs.job_runs import History, Works, settings_of, works
from tests.support.running.jobs import Job as Task
from tests.support.running.lengths import SOAK
from tests.support.running.processes import Writer
from tools.homes import FILE
from vox_mesh import Settings
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import EXPIRE
from vox_mesh.nodes.node_sockets import FILE as SOCKET
from vox_mesh.store.slots import slot_folder
from vox_mesh.views.jobs import verify_proof

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600 if SOAK else 180)]

_WAYS: Final = ("by_http", "by_python", "by_commands", "by_run_next") + (
    ("by_http", "by_python", "by_commands", "by_http") if SOAK else ()
)
_PLAIN_JOBS: Final = 194 if SOAK else 44
_HELD_JOBS: Final = 6
_LEASE_S: Final = 3.0
_PATIENCE_S: Final = 120.0


@dataclass(frozen=True)
class _AgentTask(Task):
    """How an agent works."""

    agent: str = ""
    path: str = ""
    socket: str = ""
    node: str = ""
    lease: float = _LEASE_S


class _Agent(Writer):
    """A running `tests.support.jobs.agent_programs`."""

    def held(self) -> str | None:
        """The job that it has taken and not reported."""
        found = [report for report in self.reports if "took" in report or "reported" in report]
        return found[-1].get("took") if found else None

    async def report_of(self, job_id: str) -> None:
        """Have it go on, and wait until it has reported a job."""
        self._process.stdin.write(b"go on\n")
        await self.until(lambda reports: any(each.get("reported") == job_id for each in reports))

    def refusals(self) -> list[str]:
        """The codes of its refused reports."""
        return [str(report["code"]) for report in self.reports if report.get("code") is not None]


class _Race:
    """The agents, of which one is started again when it was killed."""

    def __init__(self, run: Works, settings: Settings, folder: Path) -> None:
        self._run = run
        self._settings = settings
        self._folder = folder
        self._started: list[_Agent] = []
        self.agents: dict[str, _Agent] = {}

    async def start(self, name: str, way: str) -> None:
        """Start an agent, or start it again."""
        own = "looker-on" if way != "by_python" else name
        settings = settings_of(self._settings, self._folder, own)
        home = settings_of(self._settings, self._folder, "looker-on").home_dir
        task = _AgentTask(
            way,
            agent=name,
            path=str(self._folder / "begun"),
            socket=str(slot_folder(home, "looker-on").absolute() / SOCKET),
            node="looker-on",
        )
        log = self._folder / f"{name}-{len(self._started)}.log"
        agent = await _Agent.start(settings, task, log, "tests.support.jobs.agent_programs")
        assert isinstance(agent, _Agent)
        self._started.append(agent)
        self.agents[name] = agent

    async def close(self) -> None:
        """Leave no process behind."""
        await asyncio.gather(*(agent.kill() for agent in self._started))

    async def holder(self, jobs: set[str]) -> tuple[str, str]:
        """Wait until an agent holds one of these jobs; return its name and the job."""
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                for name, agent in self.agents.items():
                    assert agent.is_running, agent.errors
                    held = agent.held()
                    if held is not None and held in jobs:
                        return name, held
                hearing = [asyncio.create_task(agent.heard()) for agent in self.agents.values()]
                await asyncio.wait(hearing, return_when=asyncio.FIRST_COMPLETED)
                for task in hearing:
                    task.cancel()


@asynccontextmanager
async def _race(run: Works, settings: Settings, folder: Path) -> AsyncIterator[_Race]:
    race = _Race(run, settings, folder)
    try:
        yield race
    finally:
        await race.close()


async def _expired(run: Works, job_id: str) -> None:
    """Wait until the lease of a job has run out."""
    async with asyncio.timeout(_PATIENCE_S):
        async for entry in run.mesh.oplog.follow(0, kind=EXPIRE):
            if entry.accepted and job_id in entry.payload:
                return


async def _assert_agents_named(run: Works, history: History, names: Sequence[str]) -> None:
    """Each proof names its agent and the node that signed for it, and is valid."""
    done_by = Counter(item["proof"]["envelope"]["agent"] for _, item in history.completions)
    assert set(done_by) <= set(names)
    for node, item in history.completions:
        assert item["proof"]["envelope"]["attested_by"] == node.partition("/")[0]
        assert (await verify_proof(run.mesh, item["job_id"])).valid


async def test_agents_race_for_jobs_and_each_is_completed_once(folder: Path) -> None:
    settings = FILE.settings(folder, None, tick="1s", http=True, bind="127.0.0.1:0")
    ways = {f"{way.removeprefix('by_')}-{number}": way for number, way in enumerate(_WAYS)}
    async with (
        works(settings, folder, lease=_LEASE_S, places=1) as run,
        _race(run, settings, folder) as race,
    ):
        for name, way in ways.items():
            await race.start(name, way)
        kinds = [HELD] * _HELD_JOBS + [PLAIN] * _PLAIN_JOBS
        manifests = [
            Manifest.of(kind=kind, payload={"n": n}, max_interruptions=9) for n, kind in enumerate(kinds)
        ]
        scheduled = await run.mesh.jobs.schedule_all(manifests, new=True)
        waiting = {job.job_id for job in scheduled[:_HELD_JOBS]}
        for turn in range(_HELD_JOBS):
            name, job_id = await race.holder(waiting)
            waiting.discard(job_id)
            agent = race.agents[name]
            if turn % 2:
                await agent.kill()
                await race.start(name, ways[name])
            else:
                async with agent.paused(run.mesh.store):
                    await _expired(run, job_id)
                await agent.report_of(job_id)
                assert "stale_claim" in agent.refusals()[-1]
        await run.until_ended(len(kinds))
        history = await run.assert_right([job.job_id for job in scheduled])
        assert Counter(story.end for story in history.stories.values()) == Counter(succeeded=len(kinds))
        assert len(history.completions) == len(kinds)
        await _assert_agents_named(run, history, list(ways))
        print(f"{history.expired} leases ran out; refused: {dict(history.refused)}")
