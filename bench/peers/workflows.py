"""Lines on DBOS's workflows: ten steps by DBOS and by ours, each in a process of its own, in turn."""

from __future__ import annotations

import importlib.util
import sqlite3
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from bench.environment import BenchEnvironment
from bench.figures import Figure, Found, LeftOut, at_least, at_most
from bench.measure import alternate
from bench.peers.servers import lacks_postgres, postgres_server
from bench.peers.workflow_process import DBOS_SIDE, OURS
from bench.programs.subprocess_driver import ProgramProcess, start_program

_EACH_SECOND: Final = 20
_LEAST: Final = 5
_WAIT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class WorkflowPeer:
    """DBOS on a database. `serve` yields its address. `times`: how many times as fast ours has to be."""

    name: str
    title: str
    ours: str
    on_server: bool
    serve: Callable[[Path], AbstractContextManager[str]]
    lacks_server: Callable[[], str]
    times: float

    @property
    def line(self) -> str:
        """The name of its line."""
        return f"steps-peer-{self.name}"

    def why_not(self) -> str:
        """Why it can't be measured here; empty if it can."""
        if importlib.util.find_spec("dbos") is None:
            return "the Python package dbos is not installed"
        return self.lacks_server()


@contextmanager
def _sqlite_file(folder: Path) -> Iterator[str]:
    """A file with a write-ahead log."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "dbos.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    yield f"sqlite:///{path}"


WORKFLOW_PEERS: Final = (
    WorkflowPeer("dbos-sqlite", "DBOS on SQLite", "in a file", False, _sqlite_file, str, times=5.0),
    WorkflowPeer(
        "dbos-postgres", "DBOS on PostgreSQL", "on sqld", True, postgres_server, lacks_postgres, times=3.0
    ),
)


def compare_workflows_with(
    peer: WorkflowPeer,
) -> Callable[[BenchEnvironment], Coroutine[Any, Any, Sequence[Found]]]:
    """The line of a peer."""

    async def measure(environment: BenchEnvironment) -> Sequence[Found]:
        if why_not := peer.why_not():
            return [LeftOut(peer.line, f"a workflow of ten steps, {peer.title}", why_not)]
        return await _compare(environment, peer)

    return measure


async def _compare(environment: BenchEnvironment, peer: WorkflowPeer) -> list[Figure]:
    place = [str(environment.folder / "ours")]
    if peer.on_server:
        place += [environment.sqld.url, environment.sqld.token]
    count = max(_LEAST, round(environment.pace.seconds * _EACH_SECOND))
    with peer.serve(environment.folder / peer.name) as url:
        async with (
            start_program("peers.workflow_process", OURS, orjson.dumps(place).decode()) as ours,
            start_program("peers.workflow_process", DBOS_SIDE, url) as theirs,
        ):

            def side(process: ProgramProcess, signal: str) -> Callable[[], Coroutine[Any, Any, float]]:
                async def ask() -> float:
                    process.send(f"{signal} {count}")
                    return float(await process.report(_WAIT_S))

                return ask

            for process in (ours, theirs):
                await process.ready()
            found = {
                signal: await alternate(
                    {"ours": side(ours, signal), "theirs": side(theirs, signal)}, environment.pace.few_rounds
                )
                for signal in ("one", "many")
            }
    what = f"a workflow of ten steps with results of 200 bytes, one worker, {peer.ours} / {peer.title}"
    one, many = found["one"], found["many"]
    fastest = at_most(1 / peer.times)
    return [
        Figure(f"{peer.line}-one", f"{what}, p50", "ms", one["ours"], one["theirs"], fastest),
        Figure(
            f"{peer.line}-many",
            f"{what}, {count} started together",
            "1/s",
            many["ours"],
            many["theirs"],
            at_least(peer.times),
        ),
    ]
