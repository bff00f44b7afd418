"""The cast: each player through all of its lives, as the stage knows it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from proof.chaos.role import DRAINED, OVER, TURNED_AWAY, UP, Role
from proof.history import Recorder
from tools.fork_server import Program
from tools.forked import AsyncProcess, begin, load_first
from tools.homes import environment
from vox_mesh import Settings

NAMES: Final = ("ann", "ben", "cleo", "dan", "eve", "finn", "gus", "hana")

_PLAYER: Final = "proof.chaos.workload_client"
_OF_PLAYERS: Final = ("proof.plot", "proof.outside", "proof.chaos.points", "proof.chaos.storm")
_INFECTED: Final = "proof.mutants.infected"
_ROOT: Final = Path(__file__).resolve().parents[2]
_AGAIN_S: Final = 0.3
"""After a life that broke: the next may break for the same reason."""


@dataclass
class Life:
    """One process of a player, from its beginning until its exit status is known."""

    number: int
    process: AsyncProcess
    told: dict[str, asyncio.Event] = field(
        default_factory=lambda: {word: asyncio.Event() for word in (UP, OVER, DRAINED)}
    )
    is_asked_to_leave: bool = False
    how: str = ""
    """How it ended: `killed`, `left` or `broke`."""
    has_crashed: bool = False
    """Whether it ended without the mesh having told it a reason."""

    @property
    def is_over(self) -> bool:
        """Whether its process is known to be gone."""
        return self.process.returncode is not None

    async def hear(self) -> None:
        """Hear what it tells, until it is gone."""
        async for line in self.process.stdout:
            if (word := line.decode().strip()) in self.told:
                self.told[word].set()
        code = await self.process.wait()
        if code == -signal.SIGKILL:
            self.how = "killed"
        else:
            self.how = "left" if code == 0 and self.is_asked_to_leave else "broke"
        self.has_crashed = self.how == "broke" and code != TURNED_AWAY

    def order(self, what: str, **more: Any) -> None:
        """Tell it to do something."""
        if not self.is_over:
            self.process.stdin.write(json.dumps({"do": what, **more}).encode() + b"\n")


class Person:
    """A player. One task begins its lives, each when the exit status of the one before is known."""

    def __init__(
        self, role: Role, settings: Settings, stage: Recorder, logs: Path, program: tuple[str, ...]
    ) -> None:
        self.name = role.who
        self._program = program
        self.settings = settings
        self.life: Life | None = None
        self.lives: list[Life] = []
        self.is_removed = False
        self._role = role
        self._stage = stage
        self._logs = logs
        self._turning = asyncio.Lock()
        self._may_live = asyncio.Event()
        self._may_live.set()
        self._kept_off = 0
        self._news = asyncio.Event()
        self._living: asyncio.Task[None] | None = None

    # --- its lives -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Let it live, one life after another, until the end."""
        self._living = asyncio.create_task(self._live(), name=f"lives of {self.name}")

    async def _live(self) -> None:
        while True:
            await self._may_live.wait()
            async with self._turning:
                if not self._may_live.is_set():  # since we waited for our turn
                    continue
                life = await self._born()
            await life.hear()
            self._stage.note("life.ended", player=self.name, life=life.number, how=life.how)
            if life.has_crashed:
                error = f"life {life.number} ended with {life.process.returncode}"
                self._stage.note("unexpected", player=self.name, where="process", error=error)
            self.life = None
            self._tell()
            if life.how == "left":
                return
            if life.how == "broke":
                await asyncio.sleep(_AGAIN_S)

    async def _born(self) -> Life:
        number = len(self.lives) + 1
        role = replace(self._role, life=number)
        self._stage.note("life.began", player=self.name, life=number, node_id=self.settings.node_id)
        variables = {**os.environ, "PYTHONPATH": str(_ROOT), **environment(self.settings)}
        module, *arguments = self._program
        program = Program((*arguments, role.argument), variables, module=module, folder=str(self._logs))
        with (self._logs / f"{self.name}-{number}.log").open("wb") as log:
            # Whoever ends us in the middle of this must not leave a process that nobody knows of.
            starting = asyncio.ensure_future(AsyncProcess.start(program, log.fileno()))
            try:
                process = await asyncio.shield(starting)
            except asyncio.CancelledError:
                self.lives.append(Life(number, await starting))
                raise
        self.life = Life(number, process)
        self.lives.append(self.life)
        self._tell()
        return self.life

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    @asynccontextmanager
    async def off_stage(self) -> AsyncIterator[None]:
        """Kill it, and have no other life begin until this is over."""
        with self.not_started():
            await self.kill()
            yield

    @contextmanager
    def not_started(self) -> Iterator[None]:
        """Have no other life begin until this is over."""
        self._kept_off += 1
        self._may_live.clear()
        try:
            yield
        finally:
            self._kept_off -= 1
            if not self._kept_off:
                self._may_live.set()

    async def kill(self) -> None:
        """`kill -9`, and wait until its process is gone; one that is just being begun is killed, too."""
        async with self._turning:
            life = self.life
        if life is not None:
            life.process.kill()
            await self.ended(life)

    async def ended(self, life: Life) -> None:
        """Wait until a life is over; or nobody can tell any more."""
        assert self._living is not None
        while self.life is life and not self._living.done():
            news = asyncio.create_task(self._news.wait())
            await asyncio.wait((news, self._living), return_when=asyncio.FIRST_COMPLETED)
            news.cancel()

    # --- what it is told and tells ---------------------------------------------------------------

    async def until(self, word: str) -> None:
        """Wait until the life of then has said this; should it end before, until the next one has."""
        while True:
            life, news = self.life, self._news
            waits = [asyncio.create_task(news.wait())]
            if life is not None:
                waits.append(asyncio.create_task(life.told[word].wait()))
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            if life is not None and life.told[word].is_set():
                return

    @property
    def is_up(self) -> bool:
        """Whether it lives, and its node is open."""
        return self.life is not None and self.life.told[UP].is_set()

    def order(self, what: str, **more: Any) -> None:
        """Tell it to do something, if it lives."""
        if self.life is not None:
            self.life.order(what, **more)

    async def obey(self, what: str, word: str) -> None:
        """Tell it to do something, and wait for the word that it is done."""
        if self.life is not None:
            self.life.told[word].clear()
            self.life.order(what)
        await self.until(word)

    def pause(self) -> None:
        """Stop it in its tracks."""
        self._stage.note("paused", player=self.name)
        if self.life is not None:
            self.life.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        if self.life is not None:
            self.life.process.send_signal(signal.SIGCONT)
        self._stage.note("resumed", player=self.name)

    # --- its end ---------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Have it leave in good order, and wait until it is gone."""
        if (life := self.life) is not None:
            life.is_asked_to_leave = True
            life.order("leave")
            await self.ended(life)

    async def remove(self) -> None:
        """Kill it, for good."""
        self.is_removed = True
        self._kept_off += 1
        self._may_live.clear()
        await self.kill()

    async def close(self) -> None:
        """Leave nothing of it, whatever became of the play."""
        if self._living is not None:
            self._living.cancel()
            (end,) = await asyncio.gather(self._living, return_exceptions=True)
            if isinstance(end, Exception):
                self._stage.note("unexpected", player=self.name, where="stage", error=repr(end))
        for life in self.lives:
            life.process.kill()
            await life.process.wait()


def assemble() -> None:
    """Have what players are forked from loaded, while all else is made ready."""
    load_first(*_OF_PLAYERS)
    begin()


@asynccontextmanager
async def cast(
    roles: dict[Role, Settings], stage: Recorder, logs: Path, plant: str = ""
) -> AsyncIterator[dict[str, Person]]:
    """All players by their names, if need be with a planted bug; none of their processes outlives this."""
    program = (_INFECTED, plant, _PLAYER) if plant else (_PLAYER,)
    async with AsyncExitStack() as ending:
        people = {role.who: Person(role, settings, stage, logs, program) for role, settings in roles.items()}
        for person in people.values():
            ending.push_async_callback(person.close)
            person.begin()
        yield people


def assert_all_gone(people: dict[str, Person]) -> None:
    """No process of any player is left: what is read from now on stays as it is."""
    for person in people.values():
        left = [life.process.pid for life in person.lives if not life.is_over]
        assert not left, f"{person.name} still lives: {left}"
