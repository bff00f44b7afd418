"""Jobs of coding agents in tests: a node with a scripted agent, and what comes of its scripts."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil
import yaml

from tests.support.messages.messaging import PATIENCE_S
from vox_mesh.jobs.agents.config import AgentsFile, read_agents
from vox_mesh.jobs.agents.handlers import agent_handlers
from vox_mesh.jobs.exec.policy import ExecPolicy, path_of_worker
from vox_mesh.mesh import Mesh
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import Job
from vox_mesh.node import MeshNode

ROOT: Final = Path(__file__).resolve().parents[3]
Steps = Sequence[Mapping[str, Any]]
PROGRAM: Final = ROOT / "tests" / "support" / "jobs" / "scripted_agent.py"


def agent_config(base: Path, *options: str, **fields: Any) -> dict[str, Any]:
    """Return the configuration of the scripted agent, as a file of agents has it."""
    return {"command": [sys.executable, str(PROGRAM), *options], "folder": str(base), **fields}


def write_agents(path: Path, **agents: Mapping[str, Any]) -> AgentsFile:
    """Write a file of agents, and return what is read from it."""
    path.write_text(yaml.safe_dump({"agents": {name: dict(each) for name, each in agents.items()}}))
    path.chmod(0o600)
    return read_agents(path)


class AgentDesk:
    """One node that runs the scripted agent."""

    def __init__(self, mesh: MeshNode, folder: Path) -> None:
        self.mesh = mesh
        self.base = folder / "agents"
        self._file = folder / "agents.yaml"
        self._timeouts: list[asyncio.Timeout] = []

    def configure(self, *options: str, **fields: Any) -> None:
        """Let the worker of the node run the agent as `agent` and `agent.scripted`."""
        agents = write_agents(self._file, scripted=agent_config(self.base, *options, **fields))
        policy = ExecPolicy(path=path_of_worker(os.environ.get("PATH")))
        self.mesh.worker.handlers.include(agent_handlers(agents, policy, self._timeout))

    def _timeout(self, seconds: float) -> asyncio.Timeout:
        self._timeouts.append(asyncio.timeout(seconds))
        return self._timeouts[-1]

    def let_time_pass(self) -> None:
        """Have the timeout of the running agent be over."""
        self._timeouts[-1].reschedule(asyncio.get_running_loop().time())

    async def schedule(self, steps: Steps, **payload: Any) -> str:
        """Schedule a script, once."""
        fields = {
            name: payload.pop(name) for name in ("budget", "timeout", "max_attempts") if name in payload
        }
        manifest = Manifest.of(
            kind="agent", payload={"prompt": json.dumps(steps), **payload}, **{"max_attempts": 1, **fields}
        )
        (job,) = await self.mesh.jobs.schedule_all([manifest], new=True)
        return job.job_id

    async def run(self, steps: Steps, **payload: Any) -> Job:
        """Run a script to its end."""
        job = await self.schedule(steps, **payload)
        async with self.mesh.worker.running():
            return await self.mesh.jobs.wait(job, timeout=PATIENCE_S)

    async def result(self, job: Job) -> dict[str, Any]:
        """Return the result of a job."""
        assert job.state == "succeeded", job.reason
        found: dict[str, Any] = json.loads(await artifact(self.mesh, job, "result"))
        return found

    @property
    def folders(self) -> list[str]:
        """What is left of the folders of all attempts."""
        return sorted(each.name for each in self.base.iterdir()) if self.base.exists() else []


async def artifact(mesh: Mesh, job: Job, name: str) -> bytes:
    """Return an output of a job."""
    outputs = {each["name"]: each["hash"] for each in json.loads(job.output_artifacts)}
    return await mesh.artifacts.body(outputs[name])


async def lines_of(mesh: Mesh, job: Job) -> list[dict[str, Any]]:
    """Return the transcript of a job."""
    body = await artifact(mesh, job, "transcript.jsonl")
    return [json.loads(line) for line in body.splitlines()]


def is_alive(pid: int) -> bool:
    """Return whether a process is there, and has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Pids:
    """The processes that an agent reports, through a named pipe outside of its work folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "pids"
        os.mkfifo(self.path)
        self._file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)

    async def read(self) -> list[int]:
        """Wait for the report, and return the pids."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._file, ready.set)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await ready.wait()
        finally:
            loop.remove_reader(self._file)
        return [int(each) for each in os.read(self._file, 1_000).split()]

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._file)


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder, and return what it printed."""
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout


def make_repository(tmp_path: Path) -> Path:
    """Make a repository with one commit."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "README").write_text("hello\n")
    (folder / ".gitignore").write_text("ignored\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder
