"""A run: a calm time, an attack, the verification of what was forged, and vandalism at the end."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import orjson

from proof.chaos.cluster import ClusterNode, in_background, preload, run_cluster
from proof.chaos.protocol import DRAINED, OVER, UP, ProcessSpec, append_events_to
from proof.chaos.schedule import StoreKind
from proof.checkers.hostile import HOSTILE_CHECKS
from proof.history import History, Recorder
from proof.hostile.client import HostileClient, watch_liveness
from proof.hostile.forgeries import Forger
from proof.hostile.mesh import NODES, AttackedMesh, open_mesh, open_trap
from proof.hostile.writer import HostileWriter
from proof.verdicts import Verdict, evaluate
from tools.homes import environment
from vox_mesh import Settings

_CALM: Final = 0.15
_ATTACK: Final = 0.6
"""Shares of the run; the rest is vandalism."""

_TRIED_S: Final = 60.0
"""For how much longer than planned an attack may take until every route was tried, on a busy machine."""

_UP_S: Final = 90.0
_OVER_S: Final = 60.0
_DRAIN_S: Final = 120.0
_LEAVE_S: Final = 60.0
_VERIFY_S: Final = 120.0
_VERIFIED_JOBS: Final = 3
_ROOT: Final = Path(__file__).resolve().parents[2]
_NODE: Final = "proof.hostile.node_process"
LOGS: Final = "logs"
VERDICTS: Final = "verdicts.json"


class Attack(StrEnum):
    """A kind of attack."""

    REQUESTS = "requests"
    """Hostile requests to every route."""
    FORGERIES = "forgeries"
    """Rows that look genuine, and are not signed by a node."""
    ROWS = "rows"
    """Rows of the attacker in every table, with hostile content."""
    VANDALISM = "vandalism"
    """Values of wrong types in any rows, at the end: nodes may refuse to go on, with a reason."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run."""

    seed: int
    seconds: float
    store: StoreKind
    attacks: frozenset[Attack] = frozenset(Attack)
    plant: str = ""


class HostileRun:
    """One run, and the folder that keeps its history."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self.folder = folder
        (folder / LOGS).mkdir(parents=True, exist_ok=True)
        self._recorder = Recorder("stage", 1, time.monotonic, append_events_to(folder / "stage.jsonl"))
        self._nodes: dict[str, ClusterNode] = {}

    async def run(self) -> None:
        """Run everything but the checks. Nothing is left afterwards but the folder."""
        preload()
        async with open_mesh(self._plan.store) as mesh, open_trap(self._recorder) as trap:
            with self._measured_machine():
                cluster = run_cluster(
                    self._specs(mesh), self._recorder, self.folder / LOGS, self._plan.plant, _NODE
                )
                async with cluster as self._nodes, in_background(watch_liveness(mesh.urls, self._recorder)):
                    await self._all(lambda node: node.until(UP), _UP_S, "to come up")
                    self._recorder.note("calm")
                    await asyncio.sleep(self._plan.seconds * _CALM)
                    await self._attack(mesh, trap)
                    await self._vandalise(mesh)
                    await self._all(ClusterNode.leave, _LEAVE_S, "to leave")
                    self._recorder.note("left")

    def evaluate(self) -> tuple[History, list[Verdict]]:
        """Check the history, and write the verdicts."""
        history = History.read(self.folder)
        verdicts = [evaluate(check, history) for check in HOSTILE_CHECKS]
        documents = [asdict(each) | {"holds": each.holds} for each in verdicts]
        (self.folder / VERDICTS).write_bytes(orjson.dumps(documents, option=orjson.OPT_INDENT_2))
        return history, verdicts

    def _specs(self, mesh: AttackedMesh) -> dict[ProcessSpec, Settings]:
        folder = str(self.folder.absolute())
        return {
            ProcessSpec(name, 0, self._plan.seed, NODES, folder, folder, 0.0): mesh.settings[name]
            for name in NODES
        }

    @contextmanager
    def _measured_machine(self) -> Any:
        command = [sys.executable, "-m", "proof.hostile.lag", str(self.folder.absolute())]
        process = subprocess.Popen(command, cwd=_ROOT)
        try:
            yield
        finally:
            process.terminate()
            process.wait()

    def _rng(self, what: str) -> random.Random:
        return random.Random(f"{self._plan.seed} {what}")

    # --- the phases ----------------------------------------------------------------------------------

    async def _attack(self, mesh: AttackedMesh, trap: str) -> None:
        """Attack while honest work goes on; a node is killed meanwhile, and starts among hostile rows."""
        seconds, forger = self._plan.seconds * _ATTACK, self._forger(mesh, trap)
        client = self._client(mesh, "client")
        self._recorder.note("attack")
        async with AsyncExitStack() as attacks:
            for kind, work in (
                (Attack.REQUESTS, client.run),
                (Attack.ROWS, self._writer(mesh, "writer", has_wrong_types=False).insert_all_the_time),
                (Attack.FORGERIES, forger.run),
            ):
                if kind in self._plan.attacks:
                    await attacks.enter_async_context(in_background(work()))
            await asyncio.sleep(seconds / 2)
            await self._nodes[NODES[0]].kill()
            await asyncio.sleep(seconds / 2)
            await self._all(lambda node: node.until(UP), _UP_S, "to come up again")
            if Attack.REQUESTS in self._plan.attacks:
                with suppress(TimeoutError):
                    await asyncio.wait_for(client.has_tried_every_route.wait(), _TRIED_S)
        await self._all(lambda node: node.order_and_wait("over", OVER), _OVER_S, "to end its work")
        await self._all(lambda node: node.order_and_wait("drain", DRAINED), _DRAIN_S, "to drain")
        await self._verify(mesh, forger.jobs)

    async def _vandalise(self, mesh: AttackedMesh) -> None:
        """Change any rows: nodes may refuse to go on, with a reason, but none may crash."""
        self._recorder.note("vandalism")
        if Attack.VANDALISM in self._plan.attacks:
            client, vandal = (
                self._client(mesh, "client again"),
                self._writer(mesh, "vandal", has_wrong_types=True),
            )
            async with in_background(client.run()), in_background(vandal.vandalise()):
                seconds = self._plan.seconds * (1 - _CALM - _ATTACK)
                await asyncio.sleep(seconds / 2)
                await self._nodes[NODES[1]].kill()
                await asyncio.sleep(seconds / 2)

    def _client(self, mesh: AttackedMesh, name: str) -> HostileClient:
        return HostileClient(mesh.urls, self._routes(), mesh.credential, self._rng(name), self._recorder)

    def _writer(self, mesh: AttackedMesh, name: str, *, has_wrong_types: bool) -> HostileWriter:
        return HostileWriter(
            mesh.database, mesh.id, self._rng(name), self._recorder, has_wrong_types=has_wrong_types
        )

    def _forger(self, mesh: AttackedMesh, trap: str) -> Forger:
        return Forger(mesh.database, mesh.id, NODES, trap, self._rng("forger"), self._recorder)

    def _routes(self) -> Sequence[tuple[str, str]]:
        (noted, *_) = History.read(self.folder).notes("routes")
        return [(method, path) for method, path in noted.data["routes"]]

    async def _verify(self, mesh: AttackedMesh, jobs: Sequence[str]) -> None:
        """Ask the commands that verify the log and jobs what they find."""
        await self._command(mesh, "oplog", "verify", "--json")
        for job in self._rng("verify").sample(jobs, min(_VERIFIED_JOBS, len(jobs))):
            await self._command(mesh, "job", "verify", job, "--json")

    async def _command(self, mesh: AttackedMesh, *arguments: str) -> None:
        settings = mesh.settings[NODES[1]]
        variables = {**os.environ, "PYTHONPATH": str(_ROOT), **environment(settings)}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "vox_mesh.cli", *arguments),
            env=variables,
            cwd=mesh.folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(_VERIFY_S):
                out, err = await process.communicate()
        except TimeoutError:
            process.kill()
            out, err = b"", b"it does not end"
        self._recorder.note(
            "verified",
            command=" ".join(arguments),
            status=process.returncode,
            out=out.decode(errors="replace"),
            err=err.decode(errors="replace")[-2_000:],
        )

    async def _all(self, do: Callable[[ClusterNode], Awaitable[None]], seconds: float, what: str) -> None:
        await asyncio.gather(*(self._in_time(node, do, seconds, what) for node in self._nodes.values()))

    async def _in_time(
        self, node: ClusterNode, do: Callable[[ClusterNode], Awaitable[None]], seconds: float, what: str
    ) -> None:
        try:
            async with asyncio.timeout(seconds):
                await do(node)
        except TimeoutError:
            self._recorder.note(
                "unexpected",
                player=node.name,
                where="process",
                error=f"it took more than {seconds:g} s {what}",
            )
