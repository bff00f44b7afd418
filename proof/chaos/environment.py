"""The stage: a play from the first curtain to the verdicts, step by step."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import orjson

from proof.chaos.cluster import Person, assemble, assert_all_gone, cast
from proof.chaos.fuzzers import Strangers
from proof.chaos.ground import TOKEN, Ground, laid
from proof.chaos.marks import Marks
from proof.chaos.nemesis import Nemesis
from proof.chaos.picture import drawn as picture_of
from proof.chaos.replicas import Compactions
from proof.chaos.role import DRAINED, OVER, UP, Role, appended_to
from proof.chaos.schedule import PACE, ROLLBACKS, Kind, Schedule
from proof.chaos.teardown import asking, note_finals, prepare
from proof.checkers.lives import RECOVERY_S
from proof.history import History, Recorder
from proof.judge import verdicts
from proof.monitor import Monitor
from proof.reading import Ask
from proof.verdicts import Verdict

SCHEDULE: Final = "schedule.json"
VERDICTS: Final = "verdicts.json"
PICTURE: Final = "chaos.svg"
LOGS: Final = "logs"
"""The folder of what the players logged, in that of the run."""

_MEND_S: Final = 120.0
"""For what was still going wrong when the time was over."""
_UP_S: Final = 90.0
_LONG_S: Final = 60.0
"""A run of so long goes on, when all is well again, until everybody must have written."""
_OVER_S: Final = 90.0
_DRAIN_S: Final = 180.0
_LEAVE_S: Final = 45.0
_LOOK_S: Final = 0.5


class Stage:
    """One play: its people and where they play, and a folder in which all of it can be read afterwards."""

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
        self._people: dict[str, Person] = {}
        for part in (LOGS, "outside"):
            (folder / part).mkdir(parents=True)
        self._write(SCHEDULE, schedule.document())
        self._recorder = Recorder("stage", 1, time.monotonic, appended_to(folder / "stage.jsonl"))

    async def play(self) -> None:
        """Everything but the judging. Whatever happens, nothing is left of it but the folder."""
        assemble()
        async with laid(self.schedule) as ground, asking(ground.stage_settings) as (store, ask):
            await prepare(store)
            roles = self._roles(ground)
            async with cast(roles, self._recorder, self.folder / LOGS, self._plant) as self._people:
                await self._begin()
                marks = Marks(store, ask)
                async with self._monitored(ask), self._marked(marks), self._counted(ground):
                    await self._storms_and_calm(ground, marks, ask)
                    await self._go_on()
                    await self._drain()
                await self._leave()
            await note_finals(ask, ground, self._recorder)

    def judge(self) -> tuple[History, list[Verdict]]:
        """What is to be said of it; written down, and drawn."""
        history = History.read(self.folder)
        said = verdicts(history)
        documents = [asdict(each) | {"holds": each.holds} for each in said]
        self._write(VERDICTS, documents)
        (self.folder / PICTURE).write_text(picture_of(history, self.schedule, said))
        return history, said

    def _write(self, name: str, document: Any) -> None:
        (self.folder / name).write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))

    def _roles(self, ground: Ground) -> dict[Role, Any]:
        players, seed = self.schedule.players, self.schedule.seed
        folders = str(self.folder.absolute()), str((self.folder / "outside").absolute())
        roles = (Role(who, 0, seed, players, *folders, self._rest_s, self._workloads) for who in players)
        return {role: ground.settings[role.who] for role in roles}

    @asynccontextmanager
    async def _monitored(self, ask: Ask) -> AsyncIterator[None]:
        monitor = Monitor(ask, self._recorder)
        async with _beside(monitor.run(_LOOK_S)):
            yield
        await monitor.look()

    @asynccontextmanager
    async def _counted(self, ground: Ground) -> AsyncIterator[None]:
        """Count the compactions of a server's log."""
        if ground.server is None or not self.schedule.is_compacting:
            yield
            return
        compactions = Compactions(ground.server.data)
        async with _beside(compactions.run()):
            yield
        self._recorder.note("final.compactions", count=compactions.count)

    @asynccontextmanager
    async def _marked(self, marks: Marks) -> AsyncIterator[None]:
        """Only where the store goes back: nobody else asks what was kept."""
        if ROLLBACKS.isdisjoint(fault.kind for fault in self.schedule.faults):
            yield
            return
        async with _beside(marks.run()):
            yield

    # --- the acts of the play --------------------------------------------------------------------

    async def _begin(self) -> None:
        await self._all(_come_up, _UP_S, "to come up")

    async def _storms_and_calm(self, ground: Ground, marks: Marks, ask: Ask) -> None:
        """All that goes wrong, until all is well again and everybody is back."""
        async with self._called_by_strangers(ground):
            async with asyncio.timeout(self.schedule.seconds + _MEND_S):
                await Nemesis(ground, self._people, self._recorder, marks, ask).rage(self.schedule)
            await self._all(_come_up, _UP_S, "to come up again")
        self._recorder.note("healed")

    @asynccontextmanager
    async def _called_by_strangers(self, ground: Ground) -> AsyncIterator[None]:
        urls = {who: ground.url_of(who) for who in self.schedule.players}
        strangers = Strangers(urls, TOKEN, random.Random(self.schedule.seed), self._recorder)
        told = {"kind": Kind.STRANGERS, "id": 0, "player": ""}
        self._recorder.note("fault.began", **told)
        async with _beside(strangers.run()):
            yield
        self._recorder.note("fault.ended", **told)

    async def _go_on(self) -> None:
        """Play for a while when all is well, and come to an end."""
        is_long = self.schedule.seconds >= _LONG_S
        await asyncio.sleep(PACE.ttl_s + RECOVERY_S + 1 if is_long else 1.5 * PACE.ttl_s)
        self._recorder.note("over")
        await self._all(lambda person: person.obey("over", OVER), _OVER_S, "to end its deeds")

    async def _drain(self) -> None:
        """Twice: what one has kept in its spool may be for another, who had drained before it came.

        After a long run more is left, and draining may take as long as the run did.
        """
        seconds = max(_DRAIN_S, self.schedule.seconds)
        for _ in range(2):
            await self._all(lambda person: person.obey("drain", DRAINED), seconds, "to drain")
        for person in self._people.values():
            if not person.is_removed:
                self._recorder.note("drained", player=person.name)

    async def _leave(self) -> None:
        await self._all(Person.leave, _LEAVE_S, "to leave")
        assert_all_gone(self._people)

    async def _all(self, do: Callable[[Person], Awaitable[None]], seconds: float, what: str) -> None:
        """Have all do it at once, within this time; whoever does not is killed, and that is a fault."""
        left = [person for person in self._people.values() if not person.is_removed]
        await asyncio.gather(*(self._in_time(person, do, seconds, what) for person in left))

    async def _in_time(
        self, person: Person, do: Callable[[Person], Awaitable[None]], seconds: float, what: str
    ) -> None:
        try:
            async with asyncio.timeout(seconds):
                await do(person)
        except TimeoutError:
            error = f"it took more than {seconds:g} s {what}"
            self._recorder.note("unexpected", player=person.name, where="stage", error=error)
            await person.remove()


async def _come_up(person: Person) -> None:
    await person.until(UP)


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Have something done meanwhile that ends only when it is ended; should it fail, so does this."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()
