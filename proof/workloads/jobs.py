"""Jobs that need each other, that fail, are given back and take longer than their leases, and crons."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

from proof.scene import Part, Scene
from proof.workloads import settling
from proof.workloads.numbered import Numbers, chance_of, key_of
from vox_mesh import GiveUp, JobContext, Yield
from vox_mesh.errors import MeshError
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import ENDS, JobState

KINDS: Final = "proof.*"
_WORK: Final = "proof.work"
_TICK: Final = "proof.tick"
_JOB: Final = "job"
_WAYS: Final = ("well", "well", "well", "stubborn", "stubborn", "long", "fails", "back", "hopeless")
"""How the work on a job goes."""

_CRONS: Final = ("proof-odd", "proof-even")
_EVERY_MINUTE: Final = "* * * * *"
EVERY_MS: Final = 60_000
"""From one time of a cron to the next."""
_SUBMITS: Final = 0.4
_ABORTS: Final = 0.05
_TAKES_BACK: Final = 0.1
_NEEDS: Final = 0.3
_AT_A_TIME: Final = 4


@dataclass(frozen=True, slots=True)
class _Plan:
    """A job as its player means it, in each of its lives."""

    key: str
    way: str
    priority: int
    needs: tuple[str, ...]

    @classmethod
    def of(cls, who: str, number: int) -> _Plan:
        chance = chance_of(who, _JOB, number)
        before = range(max(0, number - 2), number)
        needs = tuple(key_of(who, _JOB, each) for each in before if chance.random() < _NEEDS)
        return cls(key_of(who, _JOB, number), chance.choice(_WAYS), chance.randrange(4), needs)


async def act(scene: Scene) -> None:
    """Work on jobs, and have more of them done."""
    await _work(scene)
    for name in _CRONS:
        await _add_cron(scene, name)
    numbers = Numbers(scene)
    async for _ in scene.turns():
        if scene.chance.random() < _SUBMITS:
            await _submit(scene, _Plan.of(scene.who, numbers.next()))
        if scene.chance.random() < _ABORTS:
            await _abort(scene, key_of(scene.who, _JOB, numbers.earlier()))
        if scene.chance.random() < _TAKES_BACK:
            await _take_back(scene)


async def _submit(scene: Scene, plan: _Plan) -> None:
    asked = {"key": plan.key, "needs": plan.needs}
    with scene.recorder.deed("job.submit", **asked) as doing:
        scheduled = await scene.mesh.jobs.schedule(
            _WORK,
            {"key": plan.key, "way": plan.way},
            after=plan.needs,
            priority=plan.priority,
            backoff=timedelta(seconds=scene.pace.rest_s),
            ulid=plan.key,
            new=False,
        )
        doing.ok(job=scheduled.job_id, is_new=scheduled.is_new)


async def _abort(scene: Scene, key: str) -> None:
    with scene.recorder.deed("job.abort", key=key) as doing:
        doing.ok(moved=await scene.mesh.jobs.abort(key))


async def _take_back(scene: Scene) -> None:
    """Take a job from whoever works on it, for somebody else to do."""
    with suppress(MeshError):
        for job in await scene.mesh.jobs.queries.listed(state=JobState.RUNNING, kind=_WORK, limit=1):
            with scene.recorder.deed("job.take_back", job=job.job_id) as doing:
                await scene.mesh.jobs.yield_job(job)
                doing.ok()


async def _add_cron(scene: Scene, name: str) -> None:
    with scene.recorder.deed("cron.add", name=name) as doing:
        await scene.mesh.crons.add(name, _EVERY_MINUTE, Manifest.of(kind=_TICK, payload={"cron": name}))
        doing.ok()


# --- working --------------------------------------------------------------------------------------


async def _work(scene: Scene) -> None:
    """Have this player's worker run, for as long as its node lives."""
    worker = scene.mesh.worker
    if worker.is_running:
        return
    if not worker.kinds:
        worker.handles(KINDS, lease=scene.pace.ttl_s)(_Hand(scene))
    while not worker.is_running:
        try:
            await worker.start(concurrency=_AT_A_TIME)
        except MeshError:
            await asyncio.sleep(scene.pace.tick_s)


def attempt_key(job_id: str, claim_token: int) -> str:
    """The key of the effect that an attempt at a job has outside of the mesh."""
    return f"job {job_id} attempt {claim_token}"


class _Hand:
    """The handler: notes each attempt, and has an effect outside of the mesh if it comes to its end."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    async def __call__(self, context: JobContext) -> None:
        scene, job = self._scene, context.job
        about = {"job": job.job_id, "token": job.claim_token}
        scene.recorder.note("job.began", **about)
        try:
            await self._do(context)
        except asyncio.CancelledError:
            scene.recorder.note("job.stopped", **about)
            if context.payload.get("way") != "stubborn":  # which ends as if the job were still its own
                raise
        scene.outside.effect(scene.recorder, attempt_key(job.job_id, job.claim_token))
        scene.recorder.note("job.done", **about)

    async def _do(self, context: JobContext) -> None:
        pace, chance, job = self._scene.pace, self._scene.chance, context.job
        way = context.payload.get("way")
        await asyncio.sleep(pace.rest_s * chance.random())
        if way == "long":
            await asyncio.sleep(pace.ttl_s * 1.5)
        elif way == "stubborn":
            await asyncio.sleep(pace.ttl_s / 3)
        elif way == "fails" and job.failures == 0:
            raise RuntimeError("the first attempt fails")
        elif way == "back" and job.attempts == 1:
            raise Yield(delay=pace.rest_s)
        elif way == "hopeless":
            raise GiveUp("it can't be done")


# --- the end --------------------------------------------------------------------------------------


async def drain(scene: Scene) -> None:
    """Have crons catch up and come to their end, and work until all jobs have come to theirs."""
    await _work(scene)
    for name in _CRONS:
        await settling.until(scene, partial(_is_cron_gone, scene, name))
    await settling.until(scene, partial(_is_all_done, scene))


async def _is_cron_gone(scene: Scene, name: str) -> bool:
    mesh = scene.mesh
    for cron in await mesh.crons.listed():
        if cron.name == name:
            if cron.next_ms > mesh.clock.now_ms:
                with scene.recorder.deed("cron.remove", name=name) as doing:
                    await mesh.crons.remove(name)
                    doing.ok()
            return False
    return True


async def _is_all_done(scene: Scene) -> bool:
    counts = await scene.mesh.jobs.queries.counts()
    ours = [states for kind, states in counts.items() if kind in (_WORK, _TICK)]
    return all(state in ENDS for states in ours for state in states)


JOBS: Final = Part("jobs", act, drain)
