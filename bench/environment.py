"""Where a line is measured, and our side and the raw side of each home in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import workload
from bench.measure import Call, Pace, alternate, blocking_median_us, blocking_rate, median_us, rate
from bench.raw import raw_file, raw_socket
from tools.homes import MEMORY, HomeCase
from tools.sqld import Server
from vox_mesh import Mesh, Script, Settings, Store, open_store
from vox_mesh.cli.hosts.agent_identity import give_identity
from vox_mesh.nodes.agent_token_file import find_agent_token

Rounds = dict[str, list[float]]
"""What each side reached, round by round."""


@dataclass(frozen=True, slots=True)
class BenchEnvironment:
    """A folder of the line's own, the server if it needs one, and the pace."""

    folder: Path
    server: Server | None
    pace: Pace

    @property
    def sqld(self) -> Server:
        """The server."""
        assert self.server is not None, "the line did not say that it needs a server"
        return self.server

    @asynccontextmanager
    async def store(self, home: HomeCase) -> AsyncIterator[Store]:
        """A store on this home, with the table, working as after a long run."""
        settings = home.settings(self.folder, self.sqld if home.needs_server else None)
        async with await open_store(settings) as store:
            await workload.prepare(store, settled=self.pace.settled)
            yield store

    async def compare_writes_with_sqlite(
        self, home: HomeCase, script: Callable[[], Script], callers: int
    ) -> Rounds:
        """Scripts per second of the callers (`ours`), and raw `sqlite3` transactions per second (`raw`)."""
        seconds = self.pace.seconds
        async with self.store(home) as store:
            with raw_file(self._raw_path(home)) as raw:

                async def bare() -> float:
                    return blocking_rate(raw.insert, seconds)

                ours = writing(store, script)
                sides = {"ours": lambda: rate(ours, seconds, callers), "raw": bare}
                return await alternate(sides, self.pace.rounds)

    async def compare_reads_with_sqlite(self, home: HomeCase) -> Rounds:
        """The median time of reading one row, in microseconds."""
        seconds = self.pace.seconds
        async with self.store(home) as store:
            with raw_file(self._raw_path(home)) as raw:

                async def bare() -> float:
                    return blocking_median_us(raw.select, seconds)

                ours = reading(store)
                sides = {"ours": lambda: median_us(ours, seconds), "raw": bare}
                return await alternate(sides, self.pace.rounds)

    async def compare_reads_with_socket(self, home: HomeCase) -> Rounds:
        """The median time of reading one row, in microseconds."""
        seconds = self.pace.seconds
        async with self.store(home) as store, raw_socket(self.sqld) as raw:
            ours = reading(store)
            sides = {
                "ours": lambda: median_us(ours, seconds),
                "raw": lambda: median_us(raw.select, seconds),
            }
            return await alternate(sides, self.pace.rounds)

    def _raw_path(self, home: HomeCase) -> str:
        return ":memory:" if home is MEMORY else str(self.folder / "raw.db")


def writing(store: Store, script: Callable[[], Script]) -> Call:
    """A caller's write: a new script each time."""
    return lambda: store.write(script())


def reading(store: Store, *, fresh: bool = False) -> Call:
    """A caller's read of one row."""
    return lambda: store.read(workload.SELECT, workload.FIRST, fresh=fresh)


async def give_token(settings: Settings, agent: str) -> str:
    """Give an agent of a new mesh what a setup gives it: a key, a grant and a token, which is returned.

    Call it before a node is up.
    """
    async with Mesh.open_command(settings) as mesh:
        await mesh.roles.initialise()
        await give_identity(mesh, settings.home_dir, agent)
    token = find_agent_token(settings.home_dir, agent)
    assert token is not None, "it was just issued"
    return token
