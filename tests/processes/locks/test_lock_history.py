"""The history of locks is consistent while holders sleep, servers die and answers are lost."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from proof.chaos.proxy import Fault, Proxy
from proof.history import Step
from tests.support.locks.fenced_service import FencedService
from tests.support.locks.lock_history import (
    WRITES,
    Recorder,
    falling,
    falling_writes,
    faults,
    histories,
    roam,
)
from tests.support.locks.lock_processes import Locker, lockers
from tests.support.running import lengths
from tests.support.store.tables import make_table
from tools.homes import FILE, MEMORY, MESH, MESH_HTTP, HomeCase
from tools.sqld import Server
from vox_mesh import Script, Statement
from vox_mesh.errors import StaleFence
from vox_mesh.mesh import Mesh

_KEYS = ["one", "two"]
_TTL_S = 0.3
_PLANTED_TTL_S = 0.5
_PROCESSES = 4
_PATIENCE_S = 60.0
_TOLD = 400
_BETWEEN_HARMS = 40
_BETWEEN_FAULTS = 10
_LOST = (Fault.DROP_ANSWER, Fault.CUT_ANSWER, Fault.CUT_REQUEST)


class _Faults:
    """Does harm to those who hold locks, and to their server."""

    def __init__(self, random: Random, mesh: Mesh, recorder: Recorder, processes: list[Locker]) -> None:
        self._random = random
        self._mesh = mesh
        self._recorder = recorder
        self._processes = processes
        self.server: Server | None = None
        self.proxy: Proxy | None = None

    async def next(self) -> str:
        """One more of them; what it was."""
        what = [self.pause] if self.server is None else [self.pause, self.lose, self.restart]
        fault = self._random.choice(what)
        await fault()
        return fault.__name__

    async def pause(self) -> None:
        """A process sleeps until all that it holds is over."""
        async with self._random.choice(self._processes).paused(self._mesh.store):
            for key in _KEYS:
                lock = await self._recorder.acquire(key, _TTL_S, _PATIENCE_S)
                assert lock is not None
                await self._recorder.release(lock)

    async def lose(self) -> None:
        """An answer is lost, or half a request."""
        assert self.proxy is not None
        self.proxy.spoil(self._random.choice(_LOST), after=1)
        await asyncio.wait_for(self.proxy.spoiled.acquire(), _PATIENCE_S)

    async def restart(self) -> None:
        """The server dies, and is started again."""
        assert self.server is not None
        self.server.kill()
        self.server.start()


@pytest.mark.soak
@pytest.mark.timeout(600 if lengths.SOAK else 180)
@pytest.mark.parametrize("case", [MESH, *lengths.in_soak(FILE, MESH_HTTP)], ids=str)
async def test_a_history_of_locks_under_faults_is_linearizable_for_each_key(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest, seed: int
) -> None:
    async with AsyncExitStack() as stack:
        server: Server | None = request.getfixturevalue("server") if case.needs_server else None
        settings = near = case.settings(tmp_path, server, db_deadline="20s")
        service = await stack.enter_async_context(FencedService())
        mesh = await stack.enter_async_context(Mesh.open_command(settings))
        table = await make_table(mesh.store, WRITES)
        start = await stack.enter_async_context(lockers(tmp_path, table, service.url))
        proxy = None
        if server is not None:
            proxy = await stack.enter_async_context(Proxy(server.port))
            near = settings.model_copy(update={"db_url": proxy.url})
        processes = list(await asyncio.gather(*(start(near, f"p{n}") for n in range(_PROCESSES))))
        reports: list[dict[str, Any]] = []
        recorder = Recorder(mesh, "test", lambda **facts: reports.append(facts))
        harm = _Faults(Random(seed), mesh, recorder, processes)
        harm.server, harm.proxy = server, proxy
        roaming = [process.order("roam", keys=_KEYS, ttl=_TTL_S, seed=seed) for process in processes]
        done = []
        for _ in range(lengths.LOCK_FAULTS):
            await asyncio.gather(*(process.until_more(_BETWEEN_FAULTS) for process in processes))
            done.append(await harm.next())
        for process in processes:
            await process.order("rest")
        await asyncio.gather(*roaming)
        reports += [each for process in processes for each in process.reports]
        found = await histories(mesh.store, table, reports)
        sizes = {key: len(operations) for key, operations in found.items()}
        unknown = sum(each.step is Step.UNKNOWN for operations in found.values() for each in operations)
        print(f"{case}: {sizes} operations, {unknown} of unknown outcome, under {done}")
        print(f"{case}: the service accepted {len(service.accepted)} and refused {len(service.refused)}")
        assert faults(found) == []
        assert await falling_writes(mesh.store, table) == []
        assert falling(service.accepted) == []


async def test_a_holder_that_slept_for_too_long_changes_nothing_inside_or_outside_of_the_database(
    tmp_path: Path,
) -> None:
    settings = FILE.settings(tmp_path, None)
    async with FencedService() as service, Mesh.open_command(settings) as mesh:
        table = await make_table(mesh.store, WRITES)
        async with lockers(tmp_path, table, service.url) as start:
            sleeper, other = await asyncio.gather(start(settings, "sleeper"), start(settings, "other"))
            old = (await sleeper.acquire("key"))["token"]
            assert (await sleeper.order("put", key="key"))["status"] == 204
            await sleeper.order("renew", key="key", ttl=_TTL_S)
            async with sleeper.paused(mesh.store):
                new = (await other.acquire("key", wait=_PATIENCE_S))["token"]
                assert (await other.order("put", key="key"))["status"] == 204
                await other.order("write", key="key")
            assert (await sleeper.order("put", key="key"))["status"] == 409
            await sleeper.order("write", key="key")
            assert (await sleeper.order("renew", key="key", ttl=_TTL_S))["error"] == StaleFence.__name__
            assert (await sleeper.order("release", key="key"))["was_held"] is False
            assert (await other.order("put", key="key"))["status"] == 204
            assert (await other.order("release", key="key"))["was_held"]
        assert service.accepted == [("key", old), ("key", new), ("key", new)]
        assert service.refused == [("key", old)]
        rows = await mesh.store.read(f"SELECT token FROM {table}", fresh=True)
        assert [row["token"] for row in rows] == [new]


# --- bugs that are planted, and must be found -------------------------------------------------------

_TAKE_AWAY = "UPDATE distributed_locks SET expires_at = '2000-01-01T00:00:00.000Z' WHERE scope_id = ?"
_FORGET_HOLDS = "DELETE FROM distributed_locks WHERE scope_id = ?"
_FORGET_TOKENS = "UPDATE lock_generations SET generation = 0 WHERE scope_id = ?"


async def _roamed(mesh: Mesh, table: str, *bugs: str) -> list[str]:
    """What is found wrong with a history that was made in one process, with a bug now and then."""
    answer: list[dict[str, Any]] = []

    def tell(**facts: Any) -> None:
        answer.append(facts)

    async def harm() -> None:
        while True:
            goal = len(answer) + _BETWEEN_HARMS
            while len(answer) < goal:
                await mesh.store.changed(mesh.store.change_count)
            await mesh.store.write(Script(*(Statement(bug, mesh.store.mesh_id[:1]) for bug in bugs)))

    harming = asyncio.create_task(harm()) if bugs else None
    recorders = [Recorder(mesh, f"agent-{n}", tell, table) for n in range(_PROCESSES)]
    await asyncio.gather(
        *(
            roam(recorder, _KEYS, _PLANTED_TTL_S, Random(n), lambda: len(answer) >= _TOLD)
            for n, recorder in enumerate(recorders)
        )
    )
    if harming is not None:
        harming.cancel()
        await asyncio.gather(harming, return_exceptions=True)
    return faults(await histories(mesh.store, table, answer))


@pytest.mark.parametrize(
    "bugs",
    [(), (_TAKE_AWAY,), (_FORGET_HOLDS, _FORGET_TOKENS)],
    ids=["no bug", "granted despite a hold", "tokens restart"],
)
async def test_a_planted_bug_is_found_in_the_history_and_nothing_else_is(
    bugs: tuple[str, ...], tmp_path: Path
) -> None:
    async with Mesh.open(MEMORY.settings(tmp_path, None)) as mesh:
        table = await make_table(mesh.store, WRITES)
        found = await _roamed(mesh, table, *bugs)
        assert bool(found) == bool(bugs), found
