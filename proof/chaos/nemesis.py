"""The nemesis: it injects the faults of a schedule, and heals each one at its end."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from typing import Final

from proof.chaos import foreign, rollback, server
from proof.chaos.builds import Build
from proof.chaos.clock_steps import ClockSteps
from proof.chaos.cluster import ClusterNode
from proof.chaos.infrastructure import Infrastructure
from proof.chaos.marks import Marks
from proof.chaos.proxy import HEALTHY, NetworkConditions, Proxy
from proof.chaos.proxy import Fault as Spoiling
from proof.chaos.schedule import Fault, Kind, Lane, Phase, Schedule, lane_of
from proof.chaos.torn import tear_replica, tear_spools
from proof.final_state import Ask
from proof.history import Recorder
from proof.losses import NOTE
from tools.sqld import Server

_CUTS_S: Final = 0.4
"""Between two cuts of the same link."""
_MANY: Final = 10**6
_GREETINGS: Final = 2
"""Responses with which a connection begins, before those to requests."""


_OF_THE_LIVING: Final = (
    Kind.KILL_AT_POINT,
    Kind.PAUSE,
    Kind.CLOCK_STEP,
    Kind.CLOCK_DRIFT,
    Kind.WRITER_STORM,
)
"""Faults that need a running node."""

_HELD_LOOK_S: Final = 0.002


class LeftOut(Exception):
    """The fault is impossible here and now."""


class Nemesis:
    """Injects each kind of fault."""

    def __init__(
        self,
        infrastructure: Infrastructure,
        nodes: dict[str, ClusterNode],
        recorder: Recorder,
        marks: Marks,
        ask: Ask,
        builds: Mapping[str, Build],
    ) -> None:
        self._builds = builds
        self._marks = marks
        self._ask = ask
        self._infrastructure = infrastructure
        self._nodes = nodes
        self._recorder = recorder
        self._actions: dict[Kind, Callable[[Fault], AbstractAsyncContextManager[None]]] = {
            Kind.KILL: self._killed,
            Kind.ABSENCE: self._killed,
            Kind.KILL_AT_POINT: self._killed_at_point,
            Kind.PAUSE: self._paused,
            Kind.SERVER_KILL: lambda _: server.killed(self._server),
            Kind.SERVER_PAUSE: lambda _: server.frozen(self._server),
            Kind.SERVER_RESTART: lambda _: server.stopped(self._server),
            Kind.DELAY: lambda fault: self._bad_network(
                fault, NetworkConditions(delay_s=fault.detail["delay_ms"] / 1_000)
            ),
            Kind.THROTTLE: lambda fault: self._bad_network(fault, NetworkConditions(**fault.detail)),
            Kind.HALF_OPEN: lambda fault: self._bad_network(fault, NetworkConditions(is_half_open=True)),
            Kind.DUPLICATE: lambda fault: self._bad_network(fault, NetworkConditions(is_doubling=True)),
            Kind.CUT: self._cut,
            Kind.DROP_ANSWER: self._unanswered,
            Kind.CLOCK_STEP: self._clock_wrong,
            Kind.CLOCK_DRIFT: self._clock_wrong,
            Kind.DISK_FULL: self._disk_full,
            Kind.TORN_REPLICA: self._torn,
            Kind.TORN_SPOOL: self._torn,
            Kind.FILE_HELD: self._file_held,
            Kind.WRITER_STORM: self._stormed,
            Kind.STORE_BACK: self._put_back,
            Kind.COMMITS_LOST: self._put_back,
            Kind.SLOW_ANSWERS: lambda fault: self._bad_network(
                fault, NetworkConditions(answer_s=fault.detail["delay_ms"] / 1_000)
            ),
            Kind.SERVER_STALL: lambda _: server.frozen(self._server),
            Kind.WRITE_HELD: lambda _: foreign.holding(self._infrastructure, foreign.WRITES),
            Kind.READ_HELD: lambda _: foreign.holding(self._infrastructure, foreign.READS),
            Kind.DATABASE_CLOCK: self._database_clock_wrong,
            Kind.REPLACEMENT: self._replaced,
        }

    async def run(self, schedule: Schedule) -> None:
        """Run the whole schedule; when this returns, all faults have healed."""
        began = asyncio.get_running_loop().time()
        lanes: dict[tuple[Lane, str], list[Fault]] = defaultdict(list)
        for fault in schedule.faults:
            lanes[lane_of(fault.kind, schedule.store), fault.node].append(fault)
        async with asyncio.TaskGroup() as record:
            for phase in schedule.phases:
                record.create_task(self._announce(phase, began))
            for faults in lanes.values():
                record.create_task(self._carry_out(faults, began, began + schedule.seconds))

    async def _announce(self, phase: Phase, began: float) -> None:
        await _until(began + phase.at)
        self._recorder.note("storm.began" if phase.is_storm else "calm.began")

    async def _carry_out(self, faults: list[Fault], began: float, over: float) -> None:
        """Run the faults of one target in sequence: on a slow machine some are late, or skipped."""
        for fault in faults:
            await _until(began + fault.at)
            about = {"kind": fault.kind, "id": fault.id, "player": fault.node}
            try:
                if asyncio.get_running_loop().time() > over:
                    raise LeftOut("its time was over")
                self._refuse_if_impossible(fault)
            except LeftOut as why:
                self._recorder.note("fault.left_out", **about, why=str(why))
                continue
            self._recorder.note("fault.began", **about, **fault.detail)
            async with self._actions[fault.kind](fault):
                await asyncio.sleep(fault.lasting)
            self._recorder.note("fault.ended", **about)

    # --- nodes -----------------------------------------------------------------------------------

    def _node(self, fault: Fault) -> ClusterNode:
        return self._nodes[fault.node]

    def _refuse_if_impossible(self, fault: Fault) -> None:
        if fault.kind in _OF_THE_LIVING and not self._node(fault).is_up:
            raise LeftOut(f"{fault.node} is not up")
        if fault.kind is Kind.DATABASE_CLOCK and self._infrastructure.clock is None:
            raise LeftOut("there is no libfaketime here")
        if fault.kind is Kind.DISK_FULL and fault.node not in self._infrastructure.disks:
            raise LeftOut("this user may not mount a small disk")

    @asynccontextmanager
    async def _killed(self, fault: Fault) -> AsyncIterator[None]:
        async with self._node(fault).kept_down():
            yield

    @asynccontextmanager
    async def _replaced(self, fault: Fault) -> AsyncIterator[None]:
        """Replace its process by one of another build."""
        build = self._builds[fault.detail["build"]]
        await self._node(fault).replace(build, is_killed=fault.detail["is_killed"])
        yield

    @asynccontextmanager
    async def _killed_at_point(self, fault: Fault) -> AsyncIterator[None]:
        """Tell it to kill itself at a point of the code; if it never gets there, kill it at the end."""
        node = self._node(fault)
        process = node.process
        assert process is not None
        node.order("die", point=fault.detail["point"])
        yield
        was_reached = process.is_over and process.how == "killed"
        self._recorder.note("point.reached" if was_reached else "point.missed", point=fault.detail["point"])
        if not process.is_over:
            await node.kill()

    @asynccontextmanager
    async def _paused(self, fault: Fault) -> AsyncIterator[None]:
        node = self._node(fault)
        node.pause()
        try:
            yield
        finally:
            node.resume()

    @asynccontextmanager
    async def _torn(self, fault: Fault) -> AsyncIterator[None]:
        """Kill it, and damage its files before it starts again."""
        rng = random.Random(fault.detail["chance"])
        node = self._node(fault)
        async with node.kept_down():
            if fault.kind is Kind.TORN_REPLICA:
                torn = tear_replica(self._infrastructure.replica_of(node.name), rng)
            else:
                torn = tear_spools(node.settings.home_dir, rng)
            self._recorder.note("torn", player=node.name, torn=torn)
            yield

    @asynccontextmanager
    async def _clock_wrong(self, fault: Fault) -> AsyncIterator[None]:
        node = self._node(fault)
        node.order("clock", **fault.detail)
        try:
            yield
        finally:
            node.order("clock")

    @asynccontextmanager
    async def _stormed(self, fault: Fault) -> AsyncIterator[None]:
        self._node(fault).order("storm", number=fault.id, seconds=fault.lasting)
        yield

    # --- disks and files -------------------------------------------------------------------------

    @asynccontextmanager
    async def _disk_full(self, fault: Fault) -> AsyncIterator[None]:
        disk = self._infrastructure.disks[fault.node]
        await asyncio.to_thread(disk.fill)
        try:
            yield
        finally:
            disk.empty()

    @asynccontextmanager
    async def _file_held(self, _fault: Fault) -> AsyncIterator[None]:
        """Hold a write transaction on the file, as a backup tool may."""
        path = self._infrastructure.own_settings.file_path
        with closing(sqlite3.connect(path, isolation_level=None, timeout=0.0)) as connection:
            while not connection.in_transaction:
                with suppress(sqlite3.OperationalError):
                    connection.execute("BEGIN IMMEDIATE")
                await asyncio.sleep(_HELD_LOOK_S)
            yield

    # --- the database ----------------------------------------------------------------------------

    @asynccontextmanager
    async def _put_back(self, fault: Fault) -> AsyncIterator[None]:
        """Copy the store now, and restore the copy at the end."""
        lost: rollback.Lost = {}
        if self._infrastructure.server is not None:
            links = self._infrastructure.links.values()
            restoring = rollback.of_server(self._server, links, self._marks, lost, **fault.detail)
        else:
            path = self._infrastructure.own_settings.file_path
            restoring = rollback.of_file(path, self._nodes.values(), self._marks, lost)
        async with restoring:
            yield
        self._recorder.note(NOTE, **lost)

    def _database_clock_wrong(self, fault: Fault) -> AbstractAsyncContextManager[None]:
        assert self._infrastructure.clock is not None
        steps = ClockSteps(self._infrastructure.clock, self._nodes.values(), self._ask, self._recorder)
        return steps.wrong(fault.detail["ahead_ms"])

    # --- the link to the server ------------------------------------------------------------------

    @property
    def _server(self) -> Server:
        assert self._infrastructure.server is not None
        return self._infrastructure.server

    @asynccontextmanager
    async def _bad_network(self, fault: Fault, conditions: NetworkConditions) -> AsyncIterator[None]:
        link = self._infrastructure.links[fault.node]
        link.set_conditions(conditions)
        try:
            yield
        finally:
            link.set_conditions(HEALTHY)

    @asynccontextmanager
    async def _unanswered(self, fault: Fault) -> AsyncIterator[None]:
        link = self._infrastructure.links[fault.node]
        link.spoil(Spoiling.DROP_ANSWER, times=_MANY, after=_GREETINGS)
        try:
            yield
        finally:
            link.release()

    @asynccontextmanager
    async def _cut(self, fault: Fault) -> AsyncIterator[None]:
        """Cut all connections again and again, and refuse new ones for a moment."""
        over = asyncio.Event()
        cutting = asyncio.create_task(_keep_cutting(self._infrastructure.links[fault.node], over))
        try:
            yield
        finally:
            over.set()
            await cutting


async def _keep_cutting(link: Proxy, over: asyncio.Event) -> None:
    while not over.is_set():
        await link.refuse()
        await _wait_at_most(over, _CUTS_S)
        await link.accept()
        await _wait_at_most(over, _CUTS_S)


async def _wait_at_most(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def _until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - asyncio.get_running_loop().time()))
