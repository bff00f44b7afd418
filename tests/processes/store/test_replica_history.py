"""What processes see through their replicas, while everything around them is killed and cut."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Final

import pytest

from proof.chaos.proxy import Fault, Proxy, PushFault
from tests.support.replica.replica_history import History
from tests.support.replica.replica_processes import (
    COMPACTING_FLAGS,
    PUSHED,
    PUSHED_HTTP,
    ReplicaProcesses,
    crew,
    node_settings,
)
from tests.support.replica.replicas import ACCOUNTS, AMOUNTS, COUNTERS, SHARED
from tests.support.running import lengths
from tests.support.running.jobs import Job
from tests.support.running.processes import Report, Writer
from tests.support.store.tables import make_table
from tools.homes import MESH, MESH_SHARED
from tools.sqld import Server
from vox_mesh import Script, Settings, Statement, open_store
from vox_mesh.store.replica.paths import shared_path
from vox_mesh.store.replica.shared.published import read_published

_ACTORS: Final = 4
_PATIENCE_S: Final = 60.0
_STANDSTILL_S: Final = 1.0
_LOCAL_READS: Final = 8
"""How often each process must have been answered by its replica between one fault and the next."""


@pytest.fixture
def compacting_server() -> Iterator[Server]:
    """A server that compacts its log all the time."""
    with Server(flags=COMPACTING_FLAGS) as server:
        yield server


class CounterProcesses:
    """Processes that write and read counters, each of them killed and started again at times."""

    def __init__(self, crew: ReplicaProcesses, table: str, settings: dict[str, Settings]) -> None:
        self.settings = settings
        self.reports: dict[str, list[Report]] = {name: [] for name in settings}
        self._crew = crew
        self._table = table
        self._actors: dict[str, Writer] = {}

    async def start(self, name: str) -> None:
        """Start a process, with the folder that it had before."""
        self._actors[name] = await self._crew.start(self.settings[name], Job("history", self._table, name))

    async def kill(self, name: str) -> None:
        """`kill -9`, and at once another."""
        await self._actors[name].kill()
        self.reports[name] += self._actors[name].reports
        await self.start(name)

    @property
    def follower(self) -> str:
        """Return the name of the process that follows the server for all, or of any."""
        (settings, *_) = self.settings.values()
        published = read_published(shared_path(settings.db_path, settings.home_dir, settings.endpoint))
        pid = None if published is None else published.pid
        return next((name for name, actor in self._actors.items() if actor.pid == pid), "actor0")

    async def until_served(self) -> None:
        """Wait until every process has written, and has read from its replica, a number of times more."""
        for actor in self._actors.values():
            await actor.until(_served_more(actor.reports))

    async def finish(self) -> History:
        """Let all end; what they have seen."""
        for name, actor in self._actors.items():
            self.reports[name] += await actor.finish()
        return History(self.reports)


def _served_more(reports: list[Report]) -> Callable[[list[Report]], bool]:
    known = len(reports)

    def is_met(reports: list[Report]) -> bool:
        news = reports[known:]
        written = [each for each in news if each["event"] == "written"]
        read = [each for each in news if each["event"] == "read" and each["age_s"]]
        return min(len(written), len(read)) >= _LOCAL_READS

    return is_met


def own_settings(folder: Path, server: Server, names: list[str], **more: str) -> dict[str, Settings]:
    """Return the settings of processes with replicas of their own; one reaches the server by HTTP."""
    cases = {name: PUSHED_HTTP if name == names[0] else PUSHED for name in names}
    return {name: node_settings(case, folder, server, name, **more) for name, case in cases.items()}


def shared_settings(folder: Path, server: Server, names: list[str], **more: str) -> dict[str, Settings]:
    """Return the settings of processes that share a replica."""
    more |= {"db_deadline": "60s"}
    return {name: MESH_SHARED.settings(folder / "home", server, node_id=name, **more) for name in names}


EitherSettings = Callable[..., dict[str, Settings]]


@pytest.mark.soak
@pytest.mark.parametrize("settings_of", [own_settings, shared_settings], ids=["own", "shared"])
async def test_every_process_reads_its_writes_and_nothing_goes_back(
    tmp_path: Path, compacting_server: Server, seed: int, settings_of: EitherSettings
) -> None:
    server = compacting_server
    random = Random(seed)
    async with await open_store(MESH.settings(tmp_path, server)) as store:
        table = await make_table(store, COUNTERS)
    async with Proxy(server.port) as proxy, crew(tmp_path) as members:
        names = [f"actor{number}" for number in range(_ACTORS)]
        cast = CounterProcesses(members, table, settings_of(tmp_path, server, names, db_url=proxy.url))
        for name in names:
            await cast.start(name)

        async def kill_server() -> None:
            server.kill()
            await asyncio.to_thread(server.start)

        async def stop_server() -> None:
            await asyncio.to_thread(server.end)
            await asyncio.to_thread(server.start)

        async def kill_actor() -> None:
            await cast.kill(cast.follower if settings_of is shared_settings else random.choice(names))

        async def spoil(*faults: Fault | PushFault) -> None:
            proxy.spoil(random.choice(faults), after=random.randint(1, 20))
            await asyncio.wait_for(proxy.spoiled.acquire(), _PATIENCE_S)

        troubles: list[Callable[[], Awaitable[None]]] = [
            kill_server,
            kill_actor,
            lambda: spoil(PushFault.CUT),
            stop_server,
            lambda: spoil(Fault.CUT_ANSWER, Fault.DROP_ANSWER, Fault.CUT_REQUEST),
            lambda: spoil(PushFault.SWALLOW),
        ]
        for number in range(lengths.HISTORY_FAULTS):
            await cast.until_served()
            await troubles[number % len(troubles)]()
        await cast.until_served()
        history = await cast.finish()
    history.assert_each_raise_counted_once()
    for name in names:
        reads = history.reads(name)
        local = [each for each in reads if each["age_s"]]
        print(f"{name}: {len(local)} of {len(reads)} reads were answered by the replica")
        wrong = list(history.wrong_reads(name))
        assert not wrong, "\n".join([f"{len(wrong)} wrong reads", *wrong[:10]])
        assert len(local) > _LOCAL_READS * lengths.HISTORY_FAULTS, "this was no test of the replica"
        assert {*names, SHARED} <= reads[-1]["values"].keys()


@pytest.mark.soak
@pytest.mark.parametrize("settings_of", [own_settings, shared_settings], ids=["own", "shared"])
async def test_no_read_sees_half_a_transaction_or_stops_the_event_loop(
    tmp_path: Path, server: Server, settings_of: EitherSettings
) -> None:
    is_shared = settings_of is shared_settings
    follower, other, settings = settings_of(tmp_path, server, ["follower", "other", "reader"]).values()
    async with await open_store(MESH.settings(tmp_path, server)) as store:
        table = f"{await make_table(store)}_of"
        for side in ("left", "right"):
            await store.write(
                Script(
                    Statement(f"CREATE TABLE {table}_{side} ({AMOUNTS})"),
                    *(
                        Statement(f"INSERT INTO {table}_{side} VALUES (?, 1000)", (number,))
                        for number in range(ACCOUNTS)
                    ),
                )
            )
    async with crew(tmp_path) as members:
        mover = await members.start(MESH.settings(tmp_path, server), Job("move", table, callers=8))
        await mover.until(bool)
        if is_shared:
            followers = [await members.start(each, Job("keep")) for each in (follower, other)]
            await followers[0].until(bool)
        reader = await members.start(settings, Job("look", table, seconds=lengths.MOVING_S))
        if is_shared:
            await asyncio.sleep(lengths.MOVING_S / 2)  # the instant of a fault is not waited for
            await followers[0].kill()
        assert await reader.ended(_PATIENCE_S + lengths.MOVING_S) == 0, reader.errors
        (seen,) = reader.reports
        moved = (await mover.finish())[-1]["moved"]
    print(f"{moved} moves, and {seen}")
    assert seen["sums"] == [2 * 1_000 * ACCOUNTS]
    assert seen["replica"] > 10 * seen["primary"], "this was no test of the replica"
    assert seen["changes"] > 10 * lengths.MOVING_S, "the replica stood still"
    assert seen["longest_s"] < _STANDSTILL_S
    assert "Traceback" not in reader.errors
