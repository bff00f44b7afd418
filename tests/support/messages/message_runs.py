"""Runs of messages between processes: who sends, who receives, and whether what they wrote down is right."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from tests.support.messages.relaying import TOKEN
from tests.support.running.jobs import Job
from tests.support.running.processes import Writer
from vox_mesh import Rows, Settings, Store, open_store

RECEIVER: Final = "reader"
SENDER: Final = "writer"
PATIENCE_S: Final = 120.0

_PROGRAM: Final = "tests.support.messages.message_programs"
_ROWS: Final = (
    "SELECT sender_agent, payload ->> 'n' AS n, state, claim_owner, claim_until_ms, delivery_attempts "
    "FROM a2a_messages WHERE scope_id = ?"
)
_STORED: Final = "SELECT count(*) FROM a2a_messages WHERE scope_id = ?"
_ACKED: Final = f"{_STORED} AND state = 'acked'"
_CLAIMED: Final = f"{_STORED} AND claim_until_ms IS NOT NULL"
_LEASED: Final = "SELECT count(*) FROM a2a_receivers WHERE scope_id = ? AND lease_until_ms > 0"


@dataclass(frozen=True)
class MessageJob(Job):
    """Who sends what, or who receives."""

    agents: tuple[str, ...] = ()
    path: str = ""
    """Where it is written down what is done."""
    to: str = RECEIVER
    messages: int = 0
    """How many each agent sends."""
    pace: int = 0
    """After this many, the sender waits until the last has been dealt with; 0: it never does."""
    halts: tuple[int, ...] = ()
    """Before it sends these, or deals with them, it waits until it is asked to go on."""
    roles: tuple[str, ...] = ()
    lease: float = 120.0
    loops: int = 1
    """How many consumers it has."""
    strangers: bool = False
    """Whether each message is of another sender, so that none has to wait for the one before."""
    work: float = 0.0
    """How long a receiver works on each message, in seconds."""
    patience: float = 0.0
    """How long a receiver waits for the answer to a claim; 0: as long as usual."""
    durable: bool = True
    """Whether a receiver waits until each ack is recorded."""


class MessageProcess(Writer):
    """A running `tests.support.messages.message_programs`."""

    @property
    def acked(self) -> int:
        """How many messages it has acknowledged."""
        return sum("acked" in report for report in self.reports)

    @property
    def spooled(self) -> int:
        """How many of the ones that it sent wait on its disk, or did."""
        return sum("spooled" in report for report in self.reports)

    async def until_told(self, what: str, count: int = 1) -> None:
        """Wait until it has said so, this many times."""
        await self.until(lambda reports: sum(what in report for report in reports) >= count)

    async def until_sent(self, number: int) -> None:
        """Wait until it knows that it has sent this one."""
        await self.until(lambda reports: any(report.get("sent") == number for report in reports))

    def go_on(self) -> None:
        """Have it go on, when it has halted or will."""
        self._process.stdin.write(b"{}\n")

    def terminate(self) -> None:
        """Ask it to end in good order."""
        self._process.terminate()


class MessageRun:
    """One run: its processes, the two files in which these write what they did, and a look at the table."""

    def __init__(self, settings: Settings, folder: Path, store: Store) -> None:
        self.settings = settings
        self.store = store
        self._folder = folder
        self._sent = folder / "sent"
        self._done = folder / "done"
        self._people: list[MessageProcess] = []

    def settings_of(self, name: str, **more: Any) -> Settings:
        """The same mesh, from a folder of its own."""
        folder = self._folder / name
        path = folder / "local.db" if self.settings.db_url else self.settings.db_path
        token = SecretStr(TOKEN)  # the same in all folders, or there is no relay
        values = {"home_dir": folder, "db_path": path, "node_id": name, "token": token, **more}
        return self.settings.model_copy(update=values)

    async def sender(self, agents: tuple[str, ...] = (SENDER,), **what: Any) -> MessageProcess:
        """Start a node that sends for these agents, which goes on where the last one was."""
        settings = what.pop("settings", None) or self.settings_of(f"node-of-{agents[0]}")
        path = f"{self._sent}-{agents[0]}"
        return await self._start(settings, MessageJob("send", agents=agents, path=path, **what))

    async def receiver(self, agent: str = RECEIVER, **what: Any) -> MessageProcess:
        """Start a node that receives; it is ready."""
        settings = what.pop("settings", None) or self.settings_of(f"node-of-{agent}")
        job = MessageJob("receive", agents=(agent,), path=str(self._done), **what)
        receiver = await self._start(settings, job)
        await receiver.until_told("node")
        return receiver

    async def _start(self, settings: Settings, job: MessageJob) -> MessageProcess:
        log = self._folder / f"{job.agents[0]}-{len(self._people)}.log"
        person = await MessageProcess.start(settings, job, log, _PROGRAM)
        assert isinstance(person, MessageProcess)
        self._people.append(person)
        return person

    async def close(self) -> None:
        """Leave no process behind."""
        await asyncio.gather(*(person.kill() for person in self._people))

    # --- what they did ---------------------------------------------------------------------------

    def done(self, what: str = "done") -> dict[str, list[int]]:
        """What the receivers dealt with, of each sender, in that order; `again`: what had been before."""
        numbers: dict[str, list[int]] = {}
        for line in self._done.read_text().splitlines() if self._done.exists() else ():
            kind, agent, number = line.split()
            if kind == what:
                numbers.setdefault(agent, []).append(int(number))
        return numbers

    @property
    def again(self) -> int:
        """How many messages were delivered to a client that had dealt with them."""
        return sum(len(numbers) for numbers in self.done("again").values())

    def handed_out_after_ack(self) -> list[str]:
        """Return the messages that were handed out after their ack had succeeded, or were acked twice."""
        acked: set[str] = set()
        wrong: list[str] = []
        for line in self._done.read_text().splitlines():
            kind, _, message = line.partition(" ")
            if kind in ("handed", "acked") and message in acked:
                wrong.append(line)
            if kind == "acked":
                acked.add(message)
        return wrong

    async def rows(self) -> Rows:
        """What the table holds of this mesh."""
        return await self.store.read(_ROWS, (self.settings.scope_id,), fresh=True, timeout=PATIENCE_S)

    async def claimed(self) -> int:
        """How many messages are claimed."""
        answer = await self.store.read(_CLAIMED, (self.settings.scope_id,), fresh=True)
        return int(answer.value)

    async def until_acked(self, count: int, timeout: float = PATIENCE_S) -> None:
        """Wait until this many are acknowledged in the database."""
        await self._until_shown(_ACKED, count, timeout)

    async def until_stored(self, count: int) -> None:
        """Wait until this many are in the database."""
        await self._until_shown(_STORED, count, PATIENCE_S)

    async def until_leased(self) -> None:
        """Wait until a receiver has leased an inbox."""
        await self._until_shown(_LEASED, 1, PATIENCE_S)

    async def _until_shown(self, sql: str, count: int, timeout: float) -> None:
        shown = None
        try:
            async with asyncio.timeout(timeout):
                async for change in self.store.watch(sql, (self.settings.scope_id,)):
                    shown = int(change.rows.value)
                    if shown >= count:
                        return
        except TimeoutError:
            raise AssertionError(f"{shown} of {count}: {sql}\n{await self._story()}") from None

    async def _story(self) -> str:
        """What may tell why something did not happen."""
        open_rows = [row.as_dict() for row in await self.rows() if row["state"] != "acked"]
        said = "\n---\n".join(person.errors[-2_000:] for person in self._people)
        return f"{open_rows[:5]}\n{said}"

    async def assert_all_arrived(
        self, agents: tuple[str, ...], messages: int, *, in_order: bool = True
    ) -> None:
        """Each message was dealt with once, each sender's in order, and is acknowledged in its one row."""
        await self.until_acked(len(agents) * messages)
        expected = list(range(messages))
        done = self.done()
        assert set(done) == set(agents)
        for agent in agents:
            assert Counter(done[agent]) == Counter(expected), f"lost or doubled, of {agent}"
            assert not in_order or done[agent] == expected, (
                f"out of order, of {agent}: {disorder(done[agent])}"
            )
        rows = await self.rows()
        assert {row["state"] for row in rows} == {"acked"}
        assert sorted((row["sender_agent"], row["n"]) for row in rows) == sorted(
            (agent, number) for agent in agents for number in expected
        )


def disorder(numbers: list[int]) -> list[tuple[int, int]]:
    """Where each number that is less than the one before it stands, with that one."""
    return [(before, after) for before, after in pairwise(numbers) if after < before]


@asynccontextmanager
async def post(settings: Settings, folder: Path) -> AsyncIterator[MessageRun]:
    """A run; whatever becomes of the test, all of its processes are gone at the end."""
    async with AsyncExitStack() as stack:
        watching = settings.model_copy(
            update={"home_dir": folder / "watcher", "db_path": _watched(settings, folder)}
        )
        run = MessageRun(settings, folder, await stack.enter_async_context(await open_store(watching)))
        stack.push_async_callback(run.close)
        yield run


def _watched(settings: Settings, folder: Path) -> Path:
    return folder / "watcher" / "local.db" if settings.db_url else settings.db_path
