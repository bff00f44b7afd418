"""A run: two agents and a rogue edit one repository; one agent is killed, replaced, and comes back."""

from __future__ import annotations

import asyncio
import random
import secrets
import shutil
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from typing import Final

import aiohttp
import orjson

from proof.chaos.protocol import append_events_to
from proof.chaos.schedule import StoreKind
from proof.checkers.edits import EDIT_CHECKS
from proof.editing.processes import AgentProcess, running_node
from proof.editing.repository import EditedRepository
from proof.editing.spec import EDITING, OVER, TAKEN_OVER, UP, WOKEN, AgentSpec
from proof.history import History, Recorder
from proof.verdicts import Verdict, evaluate
from tools.homes import FILE, MESH, environment
from tools.sqld import Server, free_port
from vox_mesh import Mesh, Settings
from vox_mesh.hosts.setup.hook_plan import HookPlan
from vox_mesh.hosts.setup.hosts.claude import CLAUDE
from vox_mesh.hosts.setup.installer import HookInstaller, interpreter

WORKERS: Final = ("ann", "ben")
ROGUE: Final = "eve"
KILLED: Final = "ben"
LOGS: Final = "logs"
VERDICTS: Final = "verdicts.json"

_UP_S: Final = 90.0
_PATIENCE_S: Final = 120.0
_REST_S: Final = 0.02
_WORKS: Final = 0.4
"""The share of the run before the kill, and after the return; in between, one agent is gone."""
_ASK_S: Final = 0.05
_IDLE_S: Final = 1.0
"""Until an agent is idle: its waiter has asked the node."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run."""

    seed: int
    seconds: float
    store: StoreKind
    plant: str = ""


class EditingRun:
    """One run, and the folder that keeps its history."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self.folder = folder.absolute()
        self._logs = self.folder / LOGS
        self._logs.mkdir(parents=True)
        self._recorder = Recorder("stage", 1, time.monotonic, append_events_to(self.folder / "stage.jsonl"))
        self._tokens: dict[str, str] = {}

    async def run(self) -> None:
        """Run everything but the checks. Nothing is left afterwards but the folder."""
        async with AsyncExitStack() as ending:
            folder = Path(tempfile.mkdtemp(prefix="vox-editing-"))
            ending.callback(shutil.rmtree, folder, ignore_errors=True)
            server = ending.enter_context(Server()) if self._plan.store is StoreKind.SQLD else None
            settings = self._settings(folder, server)
            repository = EditedRepository(folder, (*WORKERS, ROGUE))
            await asyncio.to_thread(repository.create)
            variables = environment(settings)
            async with Mesh.open_command(settings) as command:
                await command.roles.initialise()  # as a setup does; a node does so at a later heartbeat
            await ending.enter_async_context(
                running_node(variables, self._plan.plant, repository.main, self._logs / "node.log")
            )
            await _answering(f"http://{settings.bind}")
            mesh = await ending.enter_async_context(Mesh.open_command(settings))
            await self._admit(mesh)
            await asyncio.to_thread(repository.guard, variables, self._plan.plant)
            database = {"file": str(settings.db_path)} if server is None else _access(server)
            await asyncio.to_thread(repository.witness, self.folder, database)
            for who, tree in repository.trees.items():
                await asyncio.to_thread(_install_hooks, who, tree, settings)
            await self._play(mesh, settings, repository)
            await self._record_end(mesh, repository)

    def evaluate(self) -> tuple[History, list[Verdict]]:
        """Check the history, and write the verdicts."""
        history = History.read(self.folder)
        verdicts = [evaluate(check, history) for check in EDIT_CHECKS]
        documents = [asdict(each) | {"holds": each.holds} for each in verdicts]
        (self.folder / VERDICTS).write_bytes(orjson.dumps(documents, option=orjson.OPT_INDENT_2))
        return history, verdicts

    # --- before --------------------------------------------------------------------------------------

    def _settings(self, folder: Path, server: Server | None) -> Settings:
        case = FILE if server is None else MESH
        return case.settings(
            folder,
            server,
            node_id="node",
            http=True,
            bind=f"127.0.0.1:{free_port()}",
            token=secrets.token_urlsafe(32),
            db_deadline=_PATIENCE_S / 2,  # the database of a busy machine is slow, and no fault is asked for
            db_request_timeout=_PATIENCE_S / 4,
        )

    async def _admit(self, mesh: Mesh) -> None:
        """Have the owner admit the agents, as coders, and issue their tokens."""
        for name in (*WORKERS, ROGUE):
            await mesh.grants.admit(name)
            await mesh.grants.issue(name, ["coder"])
            self._tokens[name] = (await mesh.principals.tokens.issue(name, lasts="1h")).text

    # --- the run -------------------------------------------------------------------------------------

    async def _play(self, mesh: Mesh, settings: Settings, repository: EditedRepository) -> None:
        async with AsyncExitStack() as ending:

            async def start(who: str, incarnation: int = 1) -> AgentProcess:
                process = await self._start(who, incarnation, settings, repository)
                ending.push_async_callback(process.kill)
                return process

            rng, seconds = random.Random(f"{self._plan.seed} stage"), self._plan.seconds
            ann, ben, eve = await asyncio.gather(*map(start, (*WORKERS, ROGUE)))
            async with asyncio.timeout(_UP_S):
                await asyncio.gather(*(each.until_ever(UP) for each in (ann, ben, eve)))
            await asyncio.sleep(seconds * _WORKS)
            async with asyncio.timeout(_PATIENCE_S):
                await ben.until(EDITING, times=rng.randint(1, 3))
            await ben.kill()
            self._recorder.note("killed", who=KILLED)
            async with asyncio.timeout(_PATIENCE_S):
                await self._take_over(mesh, ann)
            ben = await start(KILLED, 2)
            async with asyncio.timeout(_UP_S):
                await ben.until_ever(UP)
            await asyncio.sleep(seconds * _WORKS)
            async with asyncio.timeout(_PATIENCE_S):
                for each in (ann, ben, eve):
                    each.order("over")
                await asyncio.gather(*(each.until_ever(OVER) for each in (ann, ben, eve)))
                ann.order("idle")
                await asyncio.sleep(_IDLE_S)
                ben.order("wake")
                await ann.until_ever(WOKEN)
                await asyncio.gather(*(each.leave() for each in (ann, ben, eve)))
            for each in (ann, ben, eve):
                if each.status != 0:
                    self._recorder.note("unexpected", who=each.spec.who, status=each.status, log=each.log_end)

    async def _start(
        self, who: str, incarnation: int, settings: Settings, repository: EditedRepository
    ) -> AgentProcess:
        module = "proof.editing.rogue" if who == ROGUE else "proof.editing.worker"
        url, project = f"http://{settings.bind}", str(repository.trees[who])
        others = tuple(name for name in WORKERS if name != who)
        spec = AgentSpec(
            *(who, incarnation, self._plan.seed, str(self.folder), project, url),
            *(others, _REST_S),
        )
        variables = {
            **environment(settings),
            "VOX_AGENT_ID": who,
            "VOX_AGENT_TOKEN": self._tokens[who],
            "HOOK_URL": url,
        }
        return await AgentProcess.start(module, spec, variables, self._logs)

    async def _take_over(self, mesh: Mesh, heir: AgentProcess) -> None:
        """End the locks of the killed agent, unless they soon expire, and have another edit its files."""
        for hold in await mesh.locks.holders():
            if hold.holder_agent != KILLED:
                continue
            path, token = hold.lock_key.removeprefix("file:"), hold.fence_token
            self._recorder.note("left-behind", path=path, token=token, left_s=hold.left_s)
            taking = asyncio.create_task(heir.until(TAKEN_OVER))
            await asyncio.sleep(0)
            heir.order("take_over", path=path)
            if hold.left_s > _PATIENCE_S:
                await mesh.locks.break_lock(hold.lock_key, "its agent was killed")
            await taking

    # --- after ---------------------------------------------------------------------------------------

    async def _record_end(self, mesh: Mesh, repository: EditedRepository) -> None:
        for commit in await asyncio.to_thread(repository.commits):
            self._recorder.note("committed", **commit)
        columns = ("message_uuid", "sender_agent", "receiver_agent", "state")
        rows = await mesh.store.read(f"SELECT {', '.join(columns)} FROM a2a_messages", (), fresh=True)
        for row in rows:
            self._recorder.note("final", table="a2a_messages", row={name: row[name] for name in columns})


def _install_hooks(who: str, tree: Path, settings: Settings) -> None:
    """Install the hooks of Claude Code: over HTTP for one agent, and as a command for the others."""
    home = settings.home_dir
    plan = HookPlan(
        *(CLAUDE.name, home, interpreter(), tree),
        auto=who != ROGUE,
        address=f"http://{settings.bind}" if who == WORKERS[0] else None,
    )
    HookInstaller(CLAUDE, tree).install(plan)


def _access(server: Server) -> dict[str, str]:
    return {"url": server.url, "token": server.token}


async def _answering(url: str) -> None:
    """Wait until a node serves."""
    async with asyncio.timeout(_UP_S), aiohttp.ClientSession() as session:
        for wait_s in repeat(_ASK_S):
            try:
                async with session.get(f"{url}/livez"):
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(wait_s)
