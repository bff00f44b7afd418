"""Finishing: what became of attempts is written down, many at a time, with a proof of each."""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NamedTuple

from blake3 import blake3

from vox_mesh.errors import DatabaseUnavailable, MeshError, OutcomeUnknown, Overloaded, Refused, StaleClaim
from vox_mesh.jobs.proof.artifacts import Artifact, Artifacts
from vox_mesh.jobs.queries import JobQueries
from vox_mesh.jobs.transitions import NOT_ALL, Item, JobTransitions
from vox_mesh.model.base.canonical import embedded
from vox_mesh.model.jobs.proof import BLAKE3, Envelope, Runner, prove_and_tell, tellable
from vox_mesh.model.jobs.records import Job, JobState, backoff_ms
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.observability import tracing
from vox_mesh.observability.log_context import detached_context, job_scope
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.script import Script
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_MOST: Final = 64
_IN_FLIGHT: Final = 2
_WEIGHT: Final = 2_048  # of one job's end, with its proof
_MAX_WEIGHT: Final = 2**20
_AGAIN_S: Final = 0.5
_TRIES: Final = 20
_NOT_RECORDED: Final = "inference_not_recorded"
_AWAY: Final = (OutcomeUnknown, Overloaded, DatabaseUnavailable)


class Ended(NamedTuple):
    """How an attempt ended. `delay_ms`: it goes back to those that wait, by no fault of its own."""

    job: Job
    state: JobState
    reason: str | None = None
    exit_code: int | None = None
    artifacts: Sequence[Artifact] = ()
    finished_ms: int = 0
    may_retry: bool = True
    delay_ms: int | None = None

    @property
    def goes_back(self) -> bool:
        """Whether the job goes back to those that wait."""
        if self.delay_ms is not None:
            return True
        has_another = self.may_retry and self.job.failures + 1 < self.job.max_attempts
        return self.state is JobState.FAILED and has_another


_Entry = tuple[Ended, "asyncio.Future[Ended | None]"]


class Finisher:
    """Writes what became of attempts. While one request is under way, the next ones gather."""

    def __init__(
        self,
        store: Store,
        moves: JobTransitions,
        roster: JobQueries,
        artifacts: Artifacts,
        author: OpLogWriter,
        clock: MeshClock,
        chance: Callable[[], float],
    ) -> None:
        self._store = store
        self._moves = moves
        self._roster = roster
        self._artifacts = artifacts
        self._author = author
        self._clock = clock
        self._chance = chance
        self.timeout_s: float | None = None
        """How long one request may take; `None`: as long as any."""
        self.stale = 0
        """How many ends were refused because their claims are over."""
        self._waiting: list[_Entry] = []
        self._writing: set[asyncio.Task[None]] = set()

    async def finish(self, ended: Ended) -> Ended | None:
        """Write it down; what was written, or nothing if that was refused: the job is not ours any more."""
        loop, began = asyncio.get_running_loop(), tracing.began()
        written: asyncio.Future[Ended | None] = loop.create_future()
        self._waiting.append((ended, written))
        if len(self._waiting) == 1:
            # After all attempts that end in this turn of the loop.
            loop.call_soon(self._begin, context=detached_context())
        told = await written
        if began:
            self._trace(ended, told, began)
        return told

    def _trace(self, ended: Ended, told: Ended | None, began: int) -> None:
        name = "job yield" if (told or ended).goes_back else "job complete"
        more = {"vox.job.state": (told or ended).state.value, "vox.job.accepted": told is not None}
        tracing.record_jobs(name, [tracing.about(ended.job, **more)], began)

    def _begin(self) -> None:
        """Write batch by batch: while the database has one, the next one is prepared."""
        while self._waiting and len(self._writing) < _IN_FLIGHT:
            task = asyncio.create_task(self._write(self._next_batch()), name="vox-mesh-finisher")
            self._writing.add(task)
            task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._writing.discard(task)
        self._begin()

    def _next_batch(self) -> list[_Entry]:
        """As many as fit into one request."""
        count = weight = 0
        for ended, _ in self._waiting[:_MOST]:
            weight += _WEIGHT + sum(artifact.weight for artifact in ended.artifacts)
            if count and weight > _MAX_WEIGHT:
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    async def _write(self, batch: Sequence[_Entry]) -> None:
        groups: dict[bool, list[_Entry]] = {}
        for each in batch:
            groups.setdefault(each[0].goes_back, []).append(each)
        try:
            await asyncio.gather(*(self._write_group(group) for group in groups.values()))
        except Exception as error:  # whatever it is, nobody is to wait in vain
            for _, written in batch:
                if not written.done():
                    written.set_exception(error)

    async def _write_group(self, group: Sequence[_Entry]) -> None:
        failure = await self._try([ended for ended, _ in group])
        if isinstance(failure, DatabaseUnavailable) and len(group) > 1:
            await asyncio.gather(*(self._write_group([each]) for each in group))
            return
        if failure is not None and not isinstance(failure, _AWAY):
            if len(group) > 1:
                for each in group:  # one of them is not ours any more: which, they tell one by one
                    await self._write_group([each])
                return
            ended, written = group[0]
            if (told := _otherwise(ended, failure)) is not None:
                await self._write_group([(told, written)])
                return
        self.stale += isinstance(failure, StaleClaim)
        for ended, written in group:
            _settle(ended, written, failure)

    async def _try(self, group: Sequence[Ended]) -> MeshError | None:
        """Write it, the short way if that may do.

        While the database is away, only the end of one job is kept, the long way: if what was kept is refused
        later, nobody is there to tell the others from it, or to go another way.
        """
        is_alone = len(group) == 1
        try:
            if await self._is_plain(group):
                failure = await self._send(self._script(group, short=True), keeps=False)
                is_not_all = isinstance(failure, Refused) and failure.reason == NOT_ALL
                if not is_not_all and not (is_alone and isinstance(failure, DatabaseUnavailable)):
                    return failure
            return await self._send(self._script(group, short=False), keeps=is_alone)
        except MeshError as error:
            return error

    async def _is_plain(self, group: Sequence[Ended]) -> bool:
        """Whether, as far as our copy of the database shows, no other jobs wait for these."""
        if group[0].goes_back:
            return False
        with suppress(DatabaseUnavailable):
            return not await self._roster.successors([ended.job.job_id for ended in group])
        return False

    async def _send(self, script: Script, *, keeps: bool) -> MeshError | None:
        """Write it, and if nobody knows whether it was written, again: it takes effect once."""
        script.appendable = keeps
        for _ in range(_TRIES):
            try:
                await self._store.write(script, timeout=self.timeout_s)
            except _AWAY as error:
                failure: MeshError = error
                if isinstance(error, DatabaseUnavailable) and not keeps:
                    break
                await asyncio.sleep(_AGAIN_S)
            except MeshError as error:
                return error
            else:
                return None
        return failure

    def _script(self, group: Sequence[Ended], *, short: bool) -> Script:
        if group[0].goes_back:
            items = [self._given_back(each) for each in group]
            return self._moves.give_back(items, claimer=self._author.identity.node_id)
        kept = self._artifacts.rows(artifact for each in group for artifact in each.artifacts)
        ends = [self._complete(each) for each in group]
        items, proofs = [item for item, _ in ends], [proof for _, proof in ends]
        end = self._moves.finish if short else self._moves.complete
        return end(items, *([kept] if kept else []), proofs=proofs)

    def _given_back(self, ended: Ended) -> Item:
        job, now_ms = ended.job, self._clock.now_ms
        item: dict[str, Any] = {"job_id": job.job_id, "claim_token": job.claim_token}
        if ended.reason is not None:
            item["reason"] = tellable(ended.reason)
        if ended.delay_ms is not None:
            return {**item, "not_before_ms": now_ms + ended.delay_ms}
        wait_ms = backoff_ms(job.backoff_ms, job.failures + 1, self._chance())
        return {**item, "not_before_ms": now_ms + wait_ms, "failed": 1}

    def _complete(self, ended: Ended) -> tuple[Item, Item]:
        """What is said of a job's end, and the proof of it."""
        job, key = ended.job, self._author.identity.key
        envelope = Envelope(
            job_id=job.job_id,
            runner=_runner(),
            worker_id=key.public,
            node_id=self._author.identity.node_id,
            attempt=job.claim_token,
            started_ms=job.started_ms or ended.finished_ms,
            finished_ms=ended.finished_ms,
            state=ended.state.value,
            attest_program=_program(),
            exit=ended.exit_code,
            error=ended.reason,
            outputs=[artifact.output for artifact in ended.artifacts],
        )
        proof, text = prove_and_tell(envelope, key)
        item: dict[str, Any] = {
            "job_id": job.job_id,
            "claim_token": job.claim_token,
            "state": ended.state.value,
            "output_artifacts": proof.envelope["outputs"],
        }
        if ended.exit_code is not None:
            item["exit_code"] = ended.exit_code
        if ended.reason is not None:
            item["reason"] = proof.envelope["error"]
        return item, {"envelope": embedded(text), "signature": proof.signature}

    async def close(self) -> None:
        """Wait until all is written."""
        while self._waiting or self._writing:
            await (asyncio.wait(self._writing) if self._writing else asyncio.sleep(0))


def _otherwise(ended: Ended, failure: MeshError) -> Ended | None:
    """The end that can be told instead: what the work did can't be, for a reason that is told then."""
    if isinstance(failure, Refused):
        if failure.reason != _NOT_RECORDED:
            return None
        return ended._replace(
            state=JobState.FAILED, reason="its kind is audited, and it recorded no inference"
        )
    if not ended.artifacts:
        return None
    return ended._replace(state=JobState.FAILED, reason=failure.line, artifacts=())


def _settle(ended: Ended, written: asyncio.Future[Ended | None], failure: MeshError | None) -> None:
    if failure is not None:
        level = logging.INFO if isinstance(failure, Refused) else logging.ERROR
        with job_scope(ended.job):
            _log.log(level, "the end of job %s was not accepted: %s", ended.job.job_id, failure.line)
    if not written.done():
        written.set_result(ended if failure is None else None)


@cache
def _runner() -> Runner:
    machine = f"{platform.system()}-{platform.machine()} Python-{platform.python_version()}".lower()
    return Runner("vox-mesh", version("vox-mesh"), machine)


@cache
def _program() -> str:
    """The hash of the runner: of all its code."""
    folder = Path(__file__).resolve().parents[2]
    whole = blake3()
    for path in sorted(folder.rglob("*.py")):
        whole.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return BLAKE3 + whole.hexdigest()
