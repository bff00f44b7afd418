"""The nemesis: does what the schedule says, and mends it again when it is over."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from typing import Final

from proof.chaos import foreign, rollback, server
from proof.chaos.clock_steps import ClockSteps
from proof.chaos.cluster import Person
from proof.chaos.ground import Ground
from proof.chaos.marks import Marks
from proof.chaos.proxy import FAIR, Proxy, Weather
from proof.chaos.proxy import Fault as Spoiling
from proof.chaos.schedule import Fault, Kind, Lane, Phase, Schedule, lane_of
from proof.chaos.torn import tear_replica, tear_spools
from proof.history import Recorder
from proof.losses import NOTE
from proof.reading import Ask
from tools.sqld import Server

_CUTS_S: Final = 0.4
"""Between two cuts of the same link."""
_MANY: Final = 10**6
_GREETINGS: Final = 2
"""Answers with which a connection begins; after them come those to what was asked."""


_OF_THE_LIVING: Final = (
    Kind.KILL_AT_POINT,
    Kind.PAUSE,
    Kind.CLOCK_STEP,
    Kind.CLOCK_DRIFT,
    Kind.WRITER_STORM,
)
"""What can befall only those who are up."""

_HELD_LOOK_S: Final = 0.002


class LeftOut(Exception):
    """It can't be done here and now."""


class Nemesis:
    """Knows how each kind of fault is brought about."""

    def __init__(
        self, ground: Ground, people: dict[str, Person], stage: Recorder, marks: Marks, ask: Ask
    ) -> None:
        self._marks = marks
        self._ask = ask
        self._ground = ground
        self._people = people
        self._stage = stage
        self._doing: dict[Kind, Callable[[Fault], AbstractAsyncContextManager[None]]] = {
            Kind.KILL: self._killed,
            Kind.ABSENCE: self._killed,
            Kind.KILL_AT_POINT: self._killed_at_point,
            Kind.PAUSE: self._paused,
            Kind.SERVER_KILL: lambda _: server.killed(self._server),
            Kind.SERVER_PAUSE: lambda _: server.frozen(self._server),
            Kind.SERVER_RESTART: lambda _: server.stopped(self._server),
            Kind.DELAY: lambda fault: self._weather(fault, Weather(delay_s=fault.detail["delay_ms"] / 1_000)),
            Kind.THROTTLE: lambda fault: self._weather(fault, Weather(**fault.detail)),
            Kind.HALF_OPEN: lambda fault: self._weather(fault, Weather(is_half_open=True)),
            Kind.DUPLICATE: lambda fault: self._weather(fault, Weather(is_doubling=True)),
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
            Kind.SLOW_ANSWERS: lambda fault: self._weather(
                fault, Weather(answer_s=fault.detail["delay_ms"] / 1_000)
            ),
            Kind.SERVER_STALL: lambda _: server.frozen(self._server),
            Kind.WRITE_HELD: lambda _: foreign.holding(self._ground, foreign.WRITES),
            Kind.READ_HELD: lambda _: foreign.holding(self._ground, foreign.READS),
            Kind.DATABASE_CLOCK: self._database_clock_wrong,
        }

    async def rage(self, schedule: Schedule) -> None:
        """Do all that is in the schedule; when this returns, all of it is mended."""
        began = asyncio.get_running_loop().time()
        lanes: dict[tuple[Lane, str], list[Fault]] = defaultdict(list)
        for fault in schedule.faults:
            lanes[lane_of(fault.kind, schedule.store), fault.player].append(fault)
        async with asyncio.TaskGroup() as doing:
            for phase in schedule.phases:
                doing.create_task(self._announce(phase, began))
            for faults in lanes.values():
                doing.create_task(self._carry_out(faults, began, began + schedule.seconds))

    async def _announce(self, phase: Phase, began: float) -> None:
        await _until(began + phase.at)
        self._stage.note("storm.began" if phase.is_storm else "calm.began")

    async def _carry_out(self, faults: list[Fault], began: float, over: float) -> None:
        """What befalls the same, one after the other: on a slow machine some come late, or never."""
        for fault in faults:
            await _until(began + fault.at)
            told = {"kind": fault.kind, "id": fault.id, "player": fault.player}
            try:
                if asyncio.get_running_loop().time() > over:
                    raise LeftOut("its time was over")
                self._refuse_if_impossible(fault)
            except LeftOut as why:
                self._stage.note("fault.left_out", **told, why=str(why))
                continue
            self._stage.note("fault.began", **told, **fault.detail)
            async with self._doing[fault.kind](fault):
                await asyncio.sleep(fault.lasting)
            self._stage.note("fault.ended", **told)

    # --- players ---------------------------------------------------------------------------------

    def _person(self, fault: Fault) -> Person:
        return self._people[fault.player]

    def _refuse_if_impossible(self, fault: Fault) -> None:
        if fault.kind in _OF_THE_LIVING and not self._person(fault).is_up:
            raise LeftOut(f"{fault.player} is not up")
        if fault.kind is Kind.DATABASE_CLOCK and self._ground.clock is None:
            raise LeftOut("there is no libfaketime here")
        if fault.kind is Kind.DISK_FULL and fault.player not in self._ground.disks:
            raise LeftOut("this user may not mount a small disk")

    @asynccontextmanager
    async def _killed(self, fault: Fault) -> AsyncIterator[None]:
        async with self._person(fault).off_stage():
            yield

    @asynccontextmanager
    async def _killed_at_point(self, fault: Fault) -> AsyncIterator[None]:
        """It kills itself when it comes to the point; if it never does, it is killed in the end."""
        person = self._person(fault)
        life = person.life
        assert life is not None
        person.order("die", point=fault.detail["point"])
        yield
        was_reached = life.is_over and life.how == "killed"
        self._stage.note("point.reached" if was_reached else "point.missed", point=fault.detail["point"])
        if not life.is_over:
            await person.kill()

    @asynccontextmanager
    async def _paused(self, fault: Fault) -> AsyncIterator[None]:
        person = self._person(fault)
        person.pause()
        try:
            yield
        finally:
            person.resume()

    @asynccontextmanager
    async def _torn(self, fault: Fault) -> AsyncIterator[None]:
        """Kill it, and tear its files before it lives again."""
        chance = random.Random(fault.detail["chance"])
        person = self._person(fault)
        async with person.off_stage():
            if fault.kind is Kind.TORN_REPLICA:
                torn = tear_replica(self._ground.replica_of(person.name), chance)
            else:
                torn = tear_spools(person.settings.home_dir, chance)
            self._stage.note("torn", player=person.name, torn=torn)
            yield

    @asynccontextmanager
    async def _clock_wrong(self, fault: Fault) -> AsyncIterator[None]:
        person = self._person(fault)
        person.order("clock", **fault.detail)
        try:
            yield
        finally:
            person.order("clock")

    @asynccontextmanager
    async def _stormed(self, fault: Fault) -> AsyncIterator[None]:
        self._person(fault).order("storm", number=fault.id, seconds=fault.lasting)
        yield

    # --- disks and files -------------------------------------------------------------------------

    @asynccontextmanager
    async def _disk_full(self, fault: Fault) -> AsyncIterator[None]:
        disk = self._ground.disks[fault.player]
        await asyncio.to_thread(disk.fill)
        try:
            yield
        finally:
            disk.empty()

    @asynccontextmanager
    async def _file_held(self, _fault: Fault) -> AsyncIterator[None]:
        """Somebody else writes to the file and does not come to an end, as a backup tool may."""
        path = self._ground.stage_settings.file_path
        with closing(sqlite3.connect(path, isolation_level=None, timeout=0.0)) as connection:
            while not connection.in_transaction:
                with suppress(sqlite3.OperationalError):
                    connection.execute("BEGIN IMMEDIATE")
                await asyncio.sleep(_HELD_LOOK_S)
            yield

    # --- the database itself ---------------------------------------------------------------------

    @asynccontextmanager
    async def _put_back(self, fault: Fault) -> AsyncIterator[None]:
        """Copy the store now, and put the copy in its place when this is over."""
        lost: rollback.Lost = {}
        if self._ground.server is not None:
            links = self._ground.links.values()
            way = rollback.of_server(self._server, links, self._marks, lost, **fault.detail)
        else:
            path = self._ground.stage_settings.file_path
            way = rollback.of_file(path, self._people.values(), self._marks, lost)
        async with way:
            yield
        self._stage.note(NOTE, **lost)

    def _database_clock_wrong(self, fault: Fault) -> AbstractAsyncContextManager[None]:
        assert self._ground.clock is not None
        steps = ClockSteps(self._ground.clock, self._people.values(), self._ask, self._stage)
        return steps.wrong(fault.detail["ahead_ms"])

    # --- the way to the server -------------------------------------------------------------------

    @property
    def _server(self) -> Server:
        assert self._ground.server is not None
        return self._ground.server

    @asynccontextmanager
    async def _weather(self, fault: Fault, weather: Weather) -> AsyncIterator[None]:
        link = self._ground.links[fault.player]
        link.turn(weather)
        try:
            yield
        finally:
            link.turn(FAIR)

    @asynccontextmanager
    async def _unanswered(self, fault: Fault) -> AsyncIterator[None]:
        link = self._ground.links[fault.player]
        link.spoil(Spoiling.DROP_ANSWER, times=_MANY, after=_GREETINGS)
        try:
            yield
        finally:
            link.release()

    @asynccontextmanager
    async def _cut(self, fault: Fault) -> AsyncIterator[None]:
        """Again and again all connections are cut, and none can be made for a moment."""
        over = asyncio.Event()
        cutting = asyncio.create_task(_keep_cutting(self._ground.links[fault.player], over))
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
