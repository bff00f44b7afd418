"""Completing: the results of attempts, and how they are written in batches, each with its proof."""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from blake3 import blake3

from vox_mesh.errors import (
    DatabaseUnavailable,
    MeshError,
    Refused,
    ScriptFailed,
    StaleClaim,
)
from vox_mesh.jobs.proof.artifacts import Artifacts
from vox_mesh.jobs.proof.brief_proof import brief_proof, common_part
from vox_mesh.jobs.steps.settled_writes import UNSETTLED, write_settled
from vox_mesh.jobs.transitions import Item, JobTransitions
from vox_mesh.jobs.worker.attempt_result import AttemptResult, WrittenEnd
from vox_mesh.jobs.worker.end_recorder import EndRecorder
from vox_mesh.model.base.canonical import embedded
from vox_mesh.model.jobs.proof import (
    BLAKE3,
    AgentAttestation,
    Envelope,
    Runner,
    prove_with_text,
    sanitize_error,
)
from vox_mesh.model.jobs.records import JobState, backoff_ms
from vox_mesh.model.rhythm.tempo import BeatStamp
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.observability import tracing
from vox_mesh.observability.log_context import detached_context, job_scope
from vox_mesh.oplog.sealed_verdicts import seal_script
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store.acting import acting_as
from vox_mesh.store.script import Script, new_key
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_MAX_BATCH: Final = 64
_MAX_IN_FLIGHT: Final = 2
_RESULT_BYTES: Final = 2_048  # of one result with its proof, roughly
_MAX_BATCH_BYTES: Final = 2**20
_HAS_BUDGET: Final = '"budget":{'
_NOT_RECORDED: Final = "inference_not_recorded"


_Entry = tuple[AttemptResult, "asyncio.Future[AttemptResult | None]"]


class Finisher:
    """Writes the results of attempts. Results that arrive during a request form the next batch."""

    def __init__(
        self,
        store: Store,
        transitions: JobTransitions,
        artifacts: Artifacts,
        writer: OpLogWriter,
        clock: MeshClock,
        chance: Callable[[], float],
        recorder: EndRecorder,
        stamp_at: Callable[[int], BeatStamp | None],
    ) -> None:
        """`stamp_at`: the bar and beat of a time, if the mesh has a tempo."""
        self._store = store
        self._transitions = transitions
        self._recorder = recorder
        self._artifacts = artifacts
        self._writer = writer
        self._clock = clock
        self._chance = chance
        self._stamp_at = stamp_at
        self.timeout_s: float | None = None
        """The timeout of one request in seconds; `None` for the store's default."""
        self.stale = 0
        """The number of results rejected because the claim was over."""
        self._is_seal_due = (
            False  # a completion was refused: until a seal says so, it counts as the job's end
        )
        self._waiting: list[_Entry] = []
        self._writing: set[asyncio.Task[None]] = set()

    async def warm_up(self) -> None:
        """Hash the program for proofs, in another thread: the first completion would block all else."""
        await asyncio.to_thread(_program)

    async def finish(self, result: AttemptResult) -> AttemptResult | None:
        """Write a result. Return the result that was written, or `None` if the claim was lost."""
        loop, began = asyncio.get_running_loop(), tracing.began()
        written: asyncio.Future[AttemptResult | None] = loop.create_future()
        self._waiting.append((result, written))
        if len(self._waiting) == 1:
            # After all results of this loop iteration.
            loop.call_soon(self._start_writes, context=detached_context())
        accepted = await written
        if began:
            self._trace(result, accepted, began)
        return accepted

    def _trace(self, sent: AttemptResult, accepted: AttemptResult | None, began: int) -> None:
        result = accepted or sent
        name = "job yield" if result.is_requeued else "job complete"
        attributes = {"vox.job.state": result.state.value, "vox.job.accepted": accepted is not None}
        tracing.record_jobs(name, [tracing.about(result.job, **attributes)], began)

    def _start_writes(self) -> None:
        """Start writing batches, up to the maximum in flight."""
        while self._waiting and len(self._writing) < _MAX_IN_FLIGHT:
            task = asyncio.create_task(self._write(self._next_batch()), name="vox-mesh-finisher")
            self._writing.add(task)
            task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._writing.discard(task)
        self._start_writes()

    def _next_batch(self) -> list[_Entry]:
        """Remove and return the waiting results that fit into one request."""
        count = size = 0
        for result, _ in self._waiting[:_MAX_BATCH]:
            size += _RESULT_BYTES + sum(artifact.weight for artifact in result.artifacts)
            if count and size > _MAX_BATCH_BYTES:
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    async def _write(self, batch: Sequence[_Entry]) -> None:
        groups: dict[tuple[bool, AgentAttestation | None], list[_Entry]] = {}
        for each in batch:
            groups.setdefault((each[0].is_requeued, each[0].agent), []).append(each)
        try:
            await asyncio.gather(*(self._write_group(group) for group in groups.values()))
        except Exception as error:  # every waiting caller must get an answer
            for _, written in batch:
                if not written.done():
                    written.set_exception(error)
        if self._is_seal_due:
            self._is_seal_due = False
            with suppress(MeshError):  # otherwise the next heartbeat seals
                await self._store.write(seal_script(), timeout=self.timeout_s)

    async def _write_group(self, group: Sequence[_Entry]) -> None:
        written_end, failure = await self._try([result for result, _ in group])
        if isinstance(failure, DatabaseUnavailable) and len(group) > 1:
            await asyncio.gather(*(self._write_group([each]) for each in group))
            return
        if failure is not None and not isinstance(failure, UNSETTLED):
            if len(group) > 1:
                for each in group:  # at least one claim is lost: write them one by one
                    await self._write_group([each])
                return
            result, written = group[0]
            if (fallback := _fallback(result, failure)) is not None:
                await self._write_group([(fallback, written)])
                return
        self.stale += isinstance(failure, StaleClaim)
        for each in group:
            _settle(each, written_end, failure)

    async def _try(self, group: Sequence[AttemptResult]) -> tuple[WrittenEnd | None, MeshError | None]:
        """Write results, and return how they were written, or the error.

        While the database is unavailable, only a single result may be spooled: if a spooled request is
        rejected later, it can be neither split nor replaced.
        """
        written_end, at_ms = None, self._clock.now_ms
        try:
            agent = group[0].agent
            with nullcontext() if agent is None else acting_as(agent.agent):
                script = self._script(group, at_ms, can_spool=len(group) == 1)
            written_end = WrittenEnd(script.key, at_ms)
            verdict = await write_settled(self._store, script, self.timeout_s)
            failure = verdict if isinstance(verdict, MeshError) else None
        except MeshError as error:
            failure = error
        if isinstance(failure, ScriptFailed) and not group[0].is_requeued:
            self._is_seal_due = True
        return written_end, failure

    def _script(self, group: Sequence[AttemptResult], at_ms: int, *, can_spool: bool) -> Script:
        causes = [cause for each in group for cause in each.causes]
        effects = self._recorder.statements(group)
        if group[0].agent is not None:
            effects.append(self._transitions.end_takes(each.job for each in group))
        if group[0].is_requeued:
            if unused := self._artifacts.note_unused(each for result in group for each in result.artifacts):
                effects.append(unused)
            effects += [statement for each in group for statement in each.step_rows]
            yielded = [{**self._yield_item(each), **self._recorder.logged(each)} for each in group]
            node_id = self._writer.identity.node_id
            return self._transitions.yield_jobs(
                yielded, *effects, claimer=node_id, can_spool=can_spool, causes=causes
            )
        if artifacts := self._artifacts.rows(artifact for each in group for artifact in each.artifacts):
            effects.append(artifacts)
        is_brief = self._writer.has_brief_proofs
        pairs = [self._complete_item(each, is_brief=is_brief) for each in group]
        items, logged = [item for item, _ in pairs], [more for _, more in pairs]
        return self._transitions.complete(
            items,
            *effects,
            logged=logged,
            worker=common_part(_runner(), _program()) if is_brief else None,
            can_spool=can_spool,
            causes=causes,
            at_ms=at_ms,
            settles=any(_HAS_BUDGET in each.job.manifest for each in group),
        )

    def _yield_item(self, result: AttemptResult) -> Item:
        job, now_ms = result.job, self._clock.now_ms
        item: dict[str, Any] = {"job_id": job.job_id, "claim_token": job.claim_token}
        if result.reason is not None:
            item["reason"] = sanitize_error(result.reason)
        if result.question is not None:
            question_id = new_key() if result.wake is None else result.wake.op_id
            item["question"] = result.question.document(question_id, now_ms)
        elif result.wake is not None:
            item["after"] = [[result.wake.op_id, "op"]]
        if result.awaited_jobs:
            item["after"] = [[job_id, "end"] for job_id in result.awaited_jobs]
        if result.delay_ms is not None:
            return {**item, "not_before_ms": now_ms + result.delay_ms}
        count, name = (
            (job.interruptions, "interrupted") if result.is_interrupted else (job.failures, "failed")
        )
        wait_ms = backoff_ms(job.backoff_ms, count + 1, self._chance())
        return {**item, "not_before_ms": now_ms + wait_ms, name: 1}

    def _complete_item(self, result: AttemptResult, *, is_brief: bool) -> tuple[Item, Item]:
        """Return the entry of a completion in its op, and what only the log has: its proof and phrase."""
        job, key = result.job, self._writer.identity.key
        started_ms = job.started_ms or result.finished_ms
        envelope = Envelope(
            job_id=job.job_id,
            runner=_runner(),
            worker_id=key.public,
            node_id=self._writer.identity.node_id,
            attempt=job.claim_token,
            started_ms=started_ms,
            finished_ms=result.finished_ms,
            state=result.state.value,
            attest_program=_program(),
            exit=result.exit_code,
            error=result.reason,
            outputs=[artifact.output for artifact in result.artifacts],
            command=result.attested,
            agent=result.agent,
            stamp=self._stamp_at(max(started_ms, result.finished_ms)),
            steps=result.steps,
        )
        proof, text = prove_with_text(envelope, key)
        item: dict[str, Any] = {
            "job_id": job.job_id,
            "claim_token": job.claim_token,
            "state": result.state.value,
            "output_artifacts": proof.envelope["outputs"],
        }
        if result.exit_code is not None:
            item["exit_code"] = result.exit_code
        if result.reason is not None:
            item["reason"] = proof.envelope["error"]
        whole = {"envelope": embedded(text), "signature": proof.signature}
        return item, {
            "proof": brief_proof(envelope, proof) if is_brief else whole,
            **self._recorder.logged(result),
        }

    async def close(self) -> None:
        """Wait until all results are written."""
        while self._waiting or self._writing:
            await (asyncio.wait(self._writing) if self._writing else asyncio.sleep(0))


def _fallback(result: AttemptResult, failure: MeshError) -> AttemptResult | None:
    """Return a failed result that can be written instead of a rejected one, or `None` if there is none."""
    if isinstance(failure, Refused):
        if failure.reason != _NOT_RECORDED:
            return None
        return _failed(result, "its kind is audited, and it recorded no inference")
    if not result.artifacts:
        return None
    return _failed(result, failure.line)._replace(artifacts=())


def _failed(result: AttemptResult, reason: str) -> AttemptResult:
    end = None if result.end is None else result.end.failed(reason)
    return result._replace(state=JobState.FAILED, reason=reason, end=end)


def _settle(entry: _Entry, written_end: WrittenEnd | None, failure: MeshError | None) -> None:
    result, written = entry
    if failure is not None:
        level = logging.INFO if isinstance(failure, Refused) else logging.ERROR
        with job_scope(result.job):
            _log.log(level, "job result rejected: job_id=%s: %s", result.job.job_id, failure.line)
    if not written.done():
        written.set_result(result._replace(written=written_end) if failure is None else None)


@cache
def _runner() -> Runner:
    machine = f"{platform.system()}-{platform.machine()} Python-{platform.python_version()}".lower()
    return Runner("vox-mesh", version("vox-mesh"), machine)


@cache
def _program() -> str:
    """Return the hash of the runner's whole source code."""
    folder = Path(__file__).resolve().parents[2]
    digest = blake3()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return BLAKE3 + digest.hexdigest()
