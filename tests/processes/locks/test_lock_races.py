"""Many want one key at the same moment: one has it, and its token is higher than any before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from tests.support.locks.lock_processes import Locker, StartLocker, lockers
from tests.support.running import lengths
from tools.homes import FILE, MEMORY, MESH, MESH_HTTP, HomeCase
from tools.sqld import Server
from vox_mesh import Settings
from vox_mesh.errors import LockHeld
from vox_mesh.mesh import Mesh

_KEY = "race"
_TTL_S = 60.0
_SHORT_TTL_S = 0.3
_PATIENCE_S = 60.0
_TASKS = 32
_ENDS = ("release", "release", "expiry", "sweep")
"""How a winner's hold ends, as often as not; besides, holders and servers are killed."""

_CASES = [(FILE, 8), (MESH, 4)]
if lengths.SOAK:
    _CASES = [(case, n) for case in (FILE, MESH, MESH_HTTP) for n in (2, 8, 32)]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[StartLocker]:
    """Start a process that locks."""
    async with lockers(tmp_path) as start:
        yield start


@dataclass
class _Race:
    """Processes that race again and again, and a client that sees to it that each race begins afresh."""

    mesh: Mesh
    racers: list[Locker]
    tokens: list[int] = field(default_factory=list)

    async def run(self) -> Locker:
        """One race: who won it. All others got its name."""
        answer = await asyncio.gather(*(racer.acquire(_KEY, ttl=_TTL_S) for racer in self.racers))
        winners = [racer for racer, each in zip(self.racers, answer, strict=True) if "token" in each]
        assert len(winners) == 1, f"{len(winners)} won: {answer}"
        self.won(next(each["token"] for each in answer if "token" in each))
        losers = [each for each in answer if "token" not in each]
        for each in losers:
            assert each["error"] == LockHeld.__name__, each
            assert each["holders"] == [winners[0].name], each
        return winners[0]

    def won(self, token: int) -> None:
        """A client was given a token."""
        assert token > max(self.tokens, default=0), f"{token} after {self.tokens}"
        self.tokens.append(token)

    async def end(self, winner: Locker, how: str) -> None:
        """The winner's hold ends."""
        if how == "release":
            assert (await winner.order("release", key=_KEY))["was_held"]
            return
        if how != "kill":
            await winner.order("renew", key=_KEY, ttl=_SHORT_TTL_S)
        # A waiter gets it when it is over, so its end need not be guessed.
        waited = await self.mesh.locks.acquire(_KEY, wait=_PATIENCE_S, ttl=_TTL_S)
        self.won(waited.fence_token)
        await self.mesh.locks.release(waited)
        if how == "sweep":
            await self.mesh.locks.sweep_expired_distributed_locks()


@pytest.mark.soak
@pytest.mark.timeout(1_800 if lengths.SOAK else 180)
@pytest.mark.parametrize(("case", "n"), _CASES, ids=str)
async def test_of_n_processes_that_race_for_a_key_one_wins_and_tokens_only_rise(
    case: HomeCase, n: int, tmp_path: Path, request: pytest.FixtureRequest, start: StartLocker, seed: int
) -> None:
    random = Random(seed)
    server: Server | None = request.getfixturevalue("server") if case.needs_server else None
    settings = case.settings(tmp_path, server, db_deadline="60s")
    racers = await asyncio.gather(*(start(settings, f"racer-{i}") for i in range(n)))
    async with Mesh.open_command(settings) as mesh:
        race = _Race(mesh, list(racers))
        for _ in range(lengths.RACES):
            await race.end(await race.run(), random.choice(_ENDS))
        for i in range(1 + lengths.RACES // 50):
            await _kill_a_holder(race, settings, start, i)
            if server is not None:
                await _kill_the_server(race, server)
        assert len(set(race.tokens)) == len(race.tokens) > lengths.RACES


async def _kill_a_holder(race: _Race, settings: Settings, start: StartLocker, i: int) -> None:
    """Its lock is free in time, and a process that begins instead goes on racing."""
    winner = await race.run()
    await winner.order("renew", key=_KEY, ttl=_SHORT_TTL_S)
    await winner.kill()
    race.racers.remove(winner)
    await race.end(winner, "kill")
    race.racers.append(await start(settings, f"racer-new-{i}"))
    await race.end(await race.run(), "release")


async def _kill_the_server(race: _Race, server: Server) -> None:
    """With a hold, which is still there afterwards; and without one."""
    winner = await race.run()
    server.kill()
    server.start()
    with pytest.raises(LockHeld):
        await race.mesh.locks.acquire(_KEY)
    await race.end(winner, "release")
    server.kill()
    server.start()
    await race.end(await race.run(), "release")


@pytest.mark.soak
async def test_of_32_tasks_that_race_for_a_key_one_wins_and_tokens_only_rise(tmp_path: Path) -> None:
    async with Mesh.open(MEMORY.settings(tmp_path, None)) as mesh:
        last = 0
        for i in range(2 * lengths.RACES):
            tried = [mesh.locks.acquire(_KEY, agent=f"agent-{n}") for n in range(_TASKS)]
            answer = await asyncio.gather(*tried, return_exceptions=True)
            (lock,) = [each for each in answer if not isinstance(each, BaseException)]
            assert {type(each) for each in answer if each is not lock} == {LockHeld}
            assert lock.fence_token > last
            last = lock.fence_token
            assert await mesh.locks.release(lock)
            if i % 5 == 0:
                await mesh.locks.sweep_expired_distributed_locks()
