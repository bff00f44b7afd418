"""Workers that are killed, stopped in their tracks, and cut off: each job ends once, and no two have it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.support.jobs.job_runs import WorkerProcess, Works, works
from tests.support.running.lengths import SOAK, only_at_full_length
from tools.homes import FILE, MESH_REPLICA, HomeCase
from tools.sqld import Server
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import COMPLETE, EXPIRE
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.views.jobs import verify_proof

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1_500 if SOAK else 180)]

_WORKERS: Final = 16 if SOAK else 4
_JOBS: Final = 5_000 if SOAK else 100
_FAULTS: Final = 40 if SOAK else 6
_PLACES: Final = 4
_LEASE_S: Final = 1.5
_PATIENCE_S: Final = 60.0
_MAX_LOSSES: Final = 12
"""More than any job loses its worker in a run."""
_SOON: Final = timedelta(milliseconds=50)


def _jobs(random: Random) -> list[Manifest]:
    """Many that are quick, some that fail now and then, and some that are longer than a lease."""
    manifests = []
    for number in range(_JOBS):
        is_long, is_bad, is_shaky = (random.random() < chance for chance in (0.03, 0.03, 0.1))
        payload = {
            "n": number,
            "seconds": 1.2 * _LEASE_S if is_long else 0.1 * random.random(),
            "failures": 10 if is_bad else int(is_shaky),
            "is_stubborn": random.random() < 0.5,
        }
        kind = f"chaos.{random.choice(['one', 'two', 'three'])}"
        attempts = 2 if is_bad else 12
        manifests.append(
            Manifest.of(
                kind=kind,
                payload=payload,
                max_attempts=attempts,
                max_interruptions=_MAX_LOSSES,
                backoff=_SOON,
            )
        )
    return manifests


async def _kill(run: Works, name: str) -> None:
    """`kill -9`, and start it again."""
    await run.workers[name].kill()
    await run.start(name)


async def _stop(run: Works, name: str) -> None:
    """Have it end in good order, and start it again."""
    await run.workers[name].stop()
    await run.start(name)


async def _pause(run: Works, name: str) -> None:
    """Stop it in its tracks until all that it had is taken from it."""
    last = await run.mesh.oplog.last_id()
    async with run.workers[name].paused(run.mesh.store):
        held = await run.mesh.jobs.queries.held_by(name, fresh=True)
        wanted = {job.job_id for job in held}
        async with asyncio.timeout(_PATIENCE_S):
            async for entry in run.mesh.oplog.follow(last, kind=EXPIRE) if wanted else nothing():
                wanted -= {job_id for job_id in wanted if entry.accepted and job_id in entry.payload}
                if not wanted:
                    break


async def nothing() -> AsyncIterator[LogEntry]:
    """Nothing to wait for."""
    return
    yield


@only_at_full_length  # chaos shows the same in every run
@pytest.mark.parametrize("case", [FILE, MESH_REPLICA], ids=str)
async def test_whatever_happens_to_workers_each_job_ends_once_and_no_two_have_it(
    tmp_path: Path, case: HomeCase, request: pytest.FixtureRequest, seed: int
) -> None:
    random = Random(seed)
    server: Server | None = request.getfixturevalue("server") if case.needs_server else None
    settings = case.settings(tmp_path, server, tick="1s")
    names = [f"worker-{number}" for number in range(_WORKERS)]
    faults = [_kill, _pause, _kill, _stop, _pause, _kill]
    async with works(settings, tmp_path, lease=_LEASE_S, places=_PLACES) as run:
        for name in names:
            await run.start(name)
        manifests = _jobs(random)
        scheduled = []
        for first in range(0, _JOBS, 100):
            scheduled += await run.mesh.jobs.schedule_all(manifests[first : first + 100], new=True)
        for number in range(_FAULTS):
            await run.until_ended(round((number + random.random()) * _JOBS * 0.9 / _FAULTS))
            if server is not None and number % 5 == 2:
                server.kill()
                await asyncio.to_thread(server.start)
            else:
                await faults[number % len(faults)](run, random.choice(names))
        await run.until_ended(_JOBS)
        history = await run.assert_right([job.job_id for job in scheduled])
        print(f"{history.expired} leases ran out; refused: {dict(history.refused)}")
        ends = Counter(story.end for story in history.stories.values())
        bad = sum(manifest.payload["failures"] > 1 for manifest in manifests)
        assert ends == Counter(succeeded=_JOBS - bad, failed=bad)


async def test_who_wakes_while_its_successor_works_is_refused(tmp_path: Path) -> None:
    async with works(FILE.settings(tmp_path, None, tick="1s"), tmp_path, lease=_LEASE_S, places=1) as run:
        sleeper = await run.start("sleeper")
        await sleeper.is_ready()
        job = await run.mesh.jobs.schedule(
            "chaos.one", {"seconds": 0.8 * _LEASE_S, "failures": 0, "is_stubborn": True}
        )
        await sleeper.until(lambda _: bool(sleeper.begun))
        async with sleeper.paused(run.mesh.store):
            other = await run.start("other")
            await other.until(lambda _: bool(other.begun))
        # It has a result to tell, and does not know yet that no one wants it.
        async with asyncio.timeout(_PATIENCE_S):
            async for entry in run.mesh.oplog.follow(0, kind=COMPLETE):
                if (entry.node_id, entry.reason) == ("sleeper", "stale_claim"):
                    break
        done = await run.mesh.jobs.wait(job, timeout=_PATIENCE_S)
        assert (done.state, done.claimer, done.attempts, done.interruptions) == ("succeeded", "other", 2, 1)
        history = await run.assert_right([job.job_id])
        assert history.refused[COMPLETE, "stale_claim"] == 1


async def _kill_at_work(worker: WorkerProcess, *, jobs: int) -> None:
    """`kill -9`, once it has begun this many jobs."""
    await worker.until(lambda _: len(worker.begun) == jobs)
    await worker.kill()


async def test_a_job_that_kills_its_workers_fails_after_as_many_as_it_may_have(tmp_path: Path) -> None:
    async with works(FILE.settings(tmp_path, None, tick="1s"), tmp_path, lease=_LEASE_S, places=2) as run:
        payload = {"seconds": 0, "failures": 0, "is_stubborn": False, "hangs": 2}
        manifests = [
            Manifest.of(
                kind="chaos.one", payload=payload, max_attempts=1, max_interruptions=losses, backoff=_SOON
            )
            for losses in (1, 2)
        ]
        too_many, allowed = await run.mesh.jobs.schedule_all(manifests, new=True)
        for _ in range(2):
            await _kill_at_work(await run.start("victim"), jobs=2)
        await run.start("victim")
        done = await run.mesh.jobs.wait(allowed, timeout=_PATIENCE_S)
        failed = await run.mesh.jobs.wait(too_many, timeout=_PATIENCE_S)
        assert (done.state, done.failures, done.interruptions) == ("succeeded", 0, 2)
        assert (failed.state, failed.failures, failed.interruptions) == ("failed", 0, 2)
        why = "interrupted more often than max_interruptions (1) allows: the lease ran out"
        assert failed.reason == why
        await run.assert_right([too_many.job_id, allowed.job_id])
        proof = await verify_proof(run.mesh, done.job_id)
        assert (proof.valid, proof.faults) == (True, [])
