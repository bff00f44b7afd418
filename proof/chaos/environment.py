"""The environment of a chaos run, from its start to the verdicts."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import orjson

from proof.chaos.builds import build_of
from proof.chaos.cluster import ClusterNode, assert_all_gone, in_background, preload, run_cluster
from proof.chaos.fuzzers import FuzzingClients
from proof.chaos.infrastructure import TOKEN, Infrastructure, open_infrastructure
from proof.chaos.marks import Marks
from proof.chaos.nemesis import Nemesis
from proof.chaos.picture import draw_picture as picture_of
from proof.chaos.protocol import DRAINED, OVER, UP, ProcessSpec, append_events_to
from proof.chaos.replicas import Compactions
from proof.chaos.schedule import PACE, ROLLBACKS, Kind, Schedule
from proof.chaos.teardown import asking, asking_unmigrated, prepare, record_end_state
from proof.checkers.incarnations import RECOVERY_S
from proof.final_state import Ask
from proof.history import History, Recorder
from proof.judge import evaluate_all
from proof.monitor import Monitor
from proof.verdicts import Verdict
from vox_mesh import Settings, Store

SCHEDULE: Final = "schedule.json"
VERDICTS: Final = "verdicts.json"
PICTURE: Final = "chaos.svg"
LOGS: Final = "logs"
"""The folder of the processes' logs, in that of the run."""

_MEND_S: Final = 120.0
"""The time for faults to end after the scheduled time."""
_UP_S: Final = 90.0
_LONG_S: Final = 60.0
"""A run at least this long continues after all faults have healed, until every node must have written."""
_OVER_S: Final = 90.0
_DRAIN_S: Final = 180.0
_LEAVE_S: Final = 45.0
_LOOK_S: Final = 0.5


class Environment:
    """One run: its nodes and infrastructure, and a folder that keeps the results."""

    def __init__(
        self,
        schedule: Schedule,
        folder: Path,
        plant: str = "",
        rest_s: float = PACE.rest_s,
        workloads: tuple[str, ...] = (),
    ) -> None:
        self.schedule = schedule
        self._rest_s = rest_s
        self._workloads = workloads
        self.folder = folder
        self._plant = plant
        self._nodes: dict[str, ClusterNode] = {}
        for part in (LOGS, "outside"):
            (folder / part).mkdir(parents=True)
        self._builds = {name: build_of(name, folder / "builds") for name in schedule.builds}
        self._write(SCHEDULE, schedule.document())
        self._recorder = Recorder("stage", 1, time.monotonic, append_events_to(folder / "stage.jsonl"))

    async def run(self) -> None:
        """Run everything but the checks. Nothing is left afterwards but the folder."""
        preload(list(self._builds.values()))
        for build in self._builds.values():
            self._recorder.note("build", **build.document())
        async with (
            open_infrastructure(self.schedule) as infrastructure,
            self._opened(infrastructure.own_settings) as (store, ask),
        ):
            specs = self._specs(infrastructure)
            first = next(iter(self._builds.values()), None)
            running = run_cluster(specs, self._recorder, self.folder / LOGS, self._plant, build=first)
            async with running as self._nodes:
                await self._begin()
                marks = Marks(store, ask)
                async with (
                    self._monitoring(ask),
                    self._marking(marks),
                    self._counting_compactions(infrastructure),
                ):
                    await self._run_faults(infrastructure, marks, ask)
                    await self._continue_and_stop()
                    await self._drain()
                await self._leave()
            await record_end_state(ask, infrastructure, self._recorder, self.folder / "outside")

    def evaluate(self) -> tuple[History, list[Verdict]]:
        """Check the history; write the verdicts and the picture."""
        history = History.read(self.folder)
        verdicts = evaluate_all(history)
        documents = [asdict(each) | {"holds": each.holds} for each in verdicts]
        self._write(VERDICTS, documents)
        (self.folder / PICTURE).write_text(picture_of(history, self.schedule, verdicts))
        return history, verdicts

    def _write(self, name: str, document: Any) -> None:
        (self.folder / name).write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))

    @asynccontextmanager
    async def _opened(self, settings: Settings) -> AsyncIterator[tuple[Store | None, Ask]]:
        """Open the prepared database; with several builds only to read it, since the nodes migrate it."""
        if first := next(iter(self._builds.values()), None):
            await asyncio.to_thread(first.prepare_database, settings)
            async with asking_unmigrated(settings) as ask:
                yield None, ask
            return
        async with asking(settings) as (store, ask):
            await prepare(store)
            yield store, ask

    def _specs(self, infrastructure: Infrastructure) -> dict[ProcessSpec, Any]:
        nodes, seed = self.schedule.nodes, self.schedule.seed
        folders = str(self.folder.absolute()), str((self.folder / "outside").absolute())
        specs = (ProcessSpec(who, 0, seed, nodes, *folders, self._rest_s, self._workloads) for who in nodes)
        return {spec: infrastructure.settings[spec.who] for spec in specs}

    @asynccontextmanager
    async def _monitoring(self, ask: Ask) -> AsyncIterator[None]:
        monitor = Monitor(ask, self._recorder)
        async with in_background(monitor.run(_LOOK_S)):
            yield
        await monitor.observe()

    @asynccontextmanager
    async def _counting_compactions(self, infrastructure: Infrastructure) -> AsyncIterator[None]:
        """Count the compactions of a server's log."""
        if infrastructure.server is None or not self.schedule.is_compacting:
            yield
            return
        compactions = Compactions(infrastructure.server.data)
        async with in_background(compactions.run()):
            yield
        self._recorder.note("final.compactions", count=compactions.count)

    @asynccontextmanager
    async def _marking(self, marks: Marks) -> AsyncIterator[None]:
        """Write marks, but only where the store is rolled back."""
        if ROLLBACKS.isdisjoint(fault.kind for fault in self.schedule.faults):
            yield
            return
        async with in_background(marks.run()):
            yield

    # --- the phases of a run ---------------------------------------------------------------------

    async def _begin(self) -> None:
        await self._all(_come_up, _UP_S, "to come up")

    async def _run_faults(self, infrastructure: Infrastructure, marks: Marks, ask: Ask) -> None:
        """Inject all faults, until they have healed and every node is back."""
        async with self._with_fuzzers(infrastructure):
            async with asyncio.timeout(self.schedule.seconds + _MEND_S):
                nemesis = Nemesis(infrastructure, self._nodes, self._recorder, marks, ask, self._builds)
                await nemesis.run(self.schedule)
            await self._all(_come_up, _UP_S, "to come up again")
        self._recorder.note("healed")

    @asynccontextmanager
    async def _with_fuzzers(self, infrastructure: Infrastructure) -> AsyncIterator[None]:
        urls = {who: infrastructure.url_of(who) for who in self.schedule.nodes}
        fuzzers = FuzzingClients(urls, TOKEN, random.Random(self.schedule.seed), self._recorder)
        about = {"kind": Kind.STRANGERS, "id": 0, "player": ""}
        self._recorder.note("fault.began", **about)
        async with in_background(fuzzers.run()):
            yield
        self._recorder.note("fault.ended", **about)

    async def _continue_and_stop(self) -> None:
        """Continue for a while without faults, then stop."""
        is_long = self.schedule.seconds >= _LONG_S
        await asyncio.sleep(PACE.ttl_s + RECOVERY_S + 1 if is_long else 1.5 * PACE.ttl_s)
        self._recorder.note("over")
        await self._all(lambda node: node.order_and_wait("over", OVER), _OVER_S, "to end its deeds")

    async def _drain(self) -> None:
        """Drain twice: a spooled message may be for a node that had drained before it was sent.

        After a long run more is left, and draining may take as long as the run did.
        """
        seconds = max(_DRAIN_S, self.schedule.seconds)
        for _ in range(2):
            await self._all(lambda node: node.order_and_wait("drain", DRAINED), seconds, "to drain")
        for node in self._nodes.values():
            if not node.is_removed:
                self._recorder.note("drained", player=node.name)

    async def _leave(self) -> None:
        await self._all(ClusterNode.leave, _LEAVE_S, "to leave")
        assert_all_gone(self._nodes)

    async def _all(self, do: Callable[[ClusterNode], Awaitable[None]], seconds: float, what: str) -> None:
        """Apply this to all nodes at once. A node that is late is killed, which counts as a fault."""
        left = [node for node in self._nodes.values() if not node.is_removed]
        await asyncio.gather(*(self._in_time(node, do, seconds, what) for node in left))

    async def _in_time(
        self, node: ClusterNode, do: Callable[[ClusterNode], Awaitable[None]], seconds: float, what: str
    ) -> None:
        try:
            async with asyncio.timeout(seconds):
                await do(node)
        except TimeoutError:
            error = f"it took more than {seconds:g} s {what}"
            self._recorder.note("unexpected", player=node.name, where="stage", error=error)
            await node.remove()


async def _come_up(node: ClusterNode) -> None:
    await node.until(UP)
