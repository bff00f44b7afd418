"""The log of steps of one attempt: what earlier attempts have stored, and what this one appends."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from vox_mesh.errors import (
    BadValue,
    DatabaseUnavailable,
    MeshError,
    Refused,
    StaleClaim,
    StepOrderChanged,
)
from vox_mesh.jobs.proof.artifacts import Artifact, Artifacts
from vox_mesh.jobs.steps.job_steps import STEPS_LOST, JobSteps
from vox_mesh.jobs.steps.settled_writes import write_settled
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.jobs.records import Job
from vox_mesh.model.jobs.steps.step_row import (
    MAX_NAME,
    MAX_STEPS,
    NO_LINK,
    StepKind,
    StepRow,
    StepState,
    by_place,
)
from vox_mesh.model.jobs.steps.suspension import Suspended
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.store.script import Outcome, Script, Statement, Verdict
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_RETRY_DELAY_S: Final = 1.0
_UNSIGNED: Final = ("", "", None)
_MAX_TAKEN: Final = 100
"""The rows of another job that are stored in one write."""

_LAST_BEGUN: Final = "last_begun"
"""In the row of a final failure: the last place that had begun when the handler learned of it."""


class Place(NamedTuple):
    """A step of the running handler: where it is, and the last row that is stored of it."""

    number: int
    name: str
    kind: StepKind
    stored: StepRow | None
    began_ms: int


class _Append(NamedTuple):
    row: StepRow
    artifact: Artifact | None
    effects: Sequence[Statement]
    written: asyncio.Future[None]


class StepLog:
    """The steps of one attempt. Rows that are appended during a write form the next one, in order."""

    def __init__(
        self,
        store: Store,
        steps: JobSteps,
        job: Job,
        clock: MeshClock,
        artifacts: Artifacts,
        fence: Callable[[], Statement],
        counts: Counter[tuple[str, str]],
        rows: Sequence[StepRow] = (),
    ) -> None:
        """`fence` guards each write: it is refused once the claim is over. `counts`: the stored rows of all
        attempts of the worker, by kind and state. `rows`: those believed so far.
        """
        self._store = store
        self._steps = steps
        self._job = job
        self._clock = clock
        self._artifacts = artifacts
        self.fence: Final = fence
        self._counts = counts
        self.rows = list(rows)
        """The rows that are stored, in order."""
        self._by_place = _kept(rows, job)
        self._count = 0
        self._only: frozenset[int] | None = None
        self._pending: list[_Append] = []
        self._waiting: dict[int, StepRow] = {}
        self._writing: asyncio.Task[None] | None = None
        self._may_be_more = job.attempts > 1
        """Whether the table may have rows that are not believed; the first write removes them."""
        self._failure: Exception | None = None

    # --- the steps of another job ----------------------------------------------------------------

    async def take_over(self, rows: Sequence[StepRow], effects: Sequence[Statement]) -> None:
        """Store rows of another job as those of this one, as far as no earlier attempt has."""
        own = [row._replace(claim_token=self._job.claim_token, signature=None) for row in rows]
        for start in range(len(self.rows), len(own), _MAX_TAKEN):
            failure = await self._write_rows(own[start : start + _MAX_TAKEN], effects)
            if failure is not None:
                raise failure
        self._by_place = _kept(self.rows, self._job)

    def limit_to(self, rows: Sequence[StepRow]) -> None:
        """Take only the steps of these rows: at any other one, the handler is suspended."""
        self._only = frozenset(row.place for row in rows)

    def lift_limit(self) -> None:
        """Go on with the steps after those."""
        self._count = max(self._only or (0,))
        self._only = None

    # --- places ----------------------------------------------------------------------------------

    def next(self, name: str, kind: StepKind) -> Place:
        """Return the place of the next step. Raises `StepOrderChanged` if another step is stored there.

        Raises `Suspended` at a step to which the attempt may not go.
        """
        if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
            raise BadValue(f"the name of a step must have 1 to {MAX_NAME} printable characters, got {name!r}")
        self._count += 1
        if self._only is not None and self._count not in self._only:
            raise Suspended([])
        stored = self._by_place.get(self._count)
        if stored is not None and (stored.name, stored.kind) != (name, kind):
            raise StepOrderChanged(
                f"step {self._count} of the job is stored as {stored.name} ({stored.kind}),"
                f" but the handler now calls {name} ({kind})"
            )
        is_done = stored is not None and stored.state == StepState.DONE
        began_ms = stored.began_ms if stored is not None and is_done else self._clock.now_ms
        return Place(self._count, name, kind, stored, began_ms)

    def is_next(self, name: str, kind: StepKind) -> bool:
        """Return whether the next step is stored under this name, or nothing is stored from there on."""
        stored = self._by_place.get(self._count + 1)
        if stored is not None:
            return (stored.name, stored.kind) == (name, kind)
        return max(self._by_place, default=0) <= self._count

    def check_complete(self) -> None:
        """Raise if a handler has returned without a stored step, or although it was suspended."""
        if self._waiting:
            step = self._waiting[min(self._waiting)].name
            raise StepOrderChanged(f"the handler returned although its step {step} still waits")
        left = [row for place, row in self._by_place.items() if place > self._count]
        if left:
            raise StepOrderChanged(f"the handler returned without its stored step {left[0].name}")

    # --- rows ------------------------------------------------------------------------------------

    async def append(
        self,
        place: Place,
        state: StepState,
        document: Mapping[str, Any],
        artifact: Artifact | None = None,
        effects: Sequence[Statement] = (),
    ) -> None:
        """Store a row, together with its effects. It is durable on return.

        Raises `StaleClaim` if the claim is over. While the database is unavailable it waits: the loss of the
        claim cancels the attempt.
        """
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append(_Append(self._row(place, state, document), artifact, effects, written))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all(), name="vox-mesh-steps")
        await written

    def wait_for(self, place: Place, document: Mapping[str, Any]) -> None:
        """Note what a step waits for: it is stored together with the suspension of the job."""
        self._waiting[place.number] = self._row(place, StepState.WAITING, document)

    def waiting_rows(self) -> Sequence[Statement]:
        """Return the statements that store what the job waits for; none if that is stored already."""
        rows = [row for _, row in sorted(self._waiting.items())]
        return self._after_stored(self._linked(rows)) if rows else ()

    def count_waits(self) -> None:
        """Count what the job waits for, once it is stored."""
        self._count_rows(self._waiting.values())

    def _count_rows(self, rows: Iterable[StepRow]) -> None:
        self._counts.update((row.kind, row.state) for row in rows)

    def _row(self, place: Place, state: StepState, document: Mapping[str, Any]) -> StepRow:
        now_ms = self._clock.now_ms
        times = (min(place.began_ms, now_ms), now_ms)
        value = canonical(document, max_depth=None)  # its parts were checked
        return StepRow(
            *(0, place.number, place.name, place.kind.value, state.value, value),
            *(self._job.claim_token, *times, *_UNSIGNED),
        )

    async def close(self) -> None:
        """Write nothing more: the attempt has ended."""
        self._failure = StaleClaim(StaleClaim.code, statement=0)
        if (writing := self._writing) is not None:
            writing.cancel()
            await asyncio.wait([writing])
            for each in self._pending:
                each.written.cancel()
            self._writing, self._pending = None, []

    async def _write_all(self) -> None:
        """Write what is pending until nothing is; after a failure, nothing more is written."""
        while batch := tuple(self._pending):
            try:
                self._failure = self._failure or await self._write(batch)
            except Exception as error:  # every caller must get an answer
                self._failure = error
            for each in batch:
                if each.written.done():
                    continue
                if self._failure is None:
                    each.written.set_result(None)
                else:
                    each.written.set_exception(self._failure)
            del self._pending[: len(batch)]
        self._writing = None

    async def _write(self, batch: Sequence[_Append]) -> MeshError | None:
        artifacts = self._artifacts.rows(each.artifact for each in batch if each.artifact is not None)
        others = [] if artifacts is None else [artifacts]
        others += [effect for each in batch for effect in each.effects]
        rows = [self._with_last_begun(each.row) for each in batch]
        failure = await self._write_rows(rows, others)
        if failure is None:
            self._count_rows(rows)
        return failure

    async def _write_rows(self, new: Sequence[StepRow], others: Sequence[Statement]) -> MeshError | None:
        if len(self.rows) + len(new) > MAX_STEPS:
            return BadValue(f"a job must have at most {MAX_STEPS} stored steps", hint="start another job")
        rows = self._linked(new)
        failure = None
        if others or self._may_be_more or not await self._is_appended(rows):
            failure = await self._write_guarded(self._after_stored(rows), others)
        if isinstance(failure, Refused) and failure.reason == STEPS_LOST:
            failure = await self._write_guarded(self._all_again(rows), others)
        if failure is None:
            self.rows += rows
            self._may_be_more = False
        return failure

    def _with_last_begun(self, row: StepRow) -> StepRow:
        """Return a row that, if its step failed for good, names the last place that has begun until now."""
        if not _is_final_failure(row):
            return row
        return row._replace(value=canonical({**row.document, _LAST_BEGUN: self._count}, max_depth=None))

    async def _is_appended(self, rows: Sequence[StepRow]) -> bool:
        """Append rows, in one statement with those of other jobs. Return whether all of them are stored.

        If not, the guarded write says why, or removes the rows that are in their places.
        """
        last = self.rows[-1] if self.rows else None
        verdict = await self._settle(self._steps.append_if_held(self._job, last, rows))
        is_appended = isinstance(verdict, Outcome) and len(verdict.rows) == len(rows)
        self._may_be_more = not is_appended
        return is_appended

    async def _write_guarded(
        self, rows: Sequence[Statement], others: Sequence[Statement]
    ) -> MeshError | None:
        """Write rows and what belongs to them, or neither. Return why they were refused, or `None`."""
        verdict = await self._settle(Script(self.fence(), *rows, *others))
        return verdict if isinstance(verdict, MeshError) else None

    async def _settle(self, script: Script) -> Verdict:
        """Write a script once the database is available."""
        has_logged = False
        while isinstance(verdict := await write_settled(self._store, script), DatabaseUnavailable):
            if not has_logged:
                has_logged = True
                _log.warning("steps not stored yet: job_id=%s: %s", self._job.job_id, verdict.line)
            await asyncio.sleep(_RETRY_DELAY_S)
        return verdict

    def _after_stored(self, rows: Sequence[StepRow]) -> list[Statement]:
        """Return the statements that append rows to the ones that are stored."""
        job_id = self._job.job_id
        statements = [self._steps.require(job_id, self.rows[-1])] if self.rows else []
        if self._may_be_more:
            statements.append(self._steps.discard(job_id, len(self.rows)))
        return [*statements, self._steps.append(job_id, rows)]

    def _all_again(self, rows: Sequence[StepRow]) -> list[Statement]:
        """Return the statements that store all rows: the database was rolled back."""
        job_id = self._job.job_id
        return [self._steps.discard(job_id, 0), self._steps.append(job_id, [*self.rows, *rows])]

    def _linked(self, rows: Sequence[StepRow]) -> list[StepRow]:
        """Return rows with their numbers, links and signature, after the rows that are stored."""
        linked: list[StepRow] = []
        link = self.rows[-1].link if self.rows else NO_LINK
        for seq, row in enumerate(rows, len(self.rows) + 1):
            linked.append(row.placed(seq, self._job.last_op, link))
            link = linked[-1].link
        return self._steps.signed(self._job.job_id, linked)


def _kept(rows: Sequence[StepRow], job: Job) -> dict[int, StepRow]:
    """Return the last row of each place, without the steps that are tried again with their job.

    They failed for good, their attempt failed, and no stored step began after it: the handler did not go on.
    """
    found = by_place(rows)
    last = max(found, default=0)
    return {place: row for place, row in found.items() if not _is_tried_again(row, last, job)}


def _is_tried_again(row: StepRow, last: int, job: Job) -> bool:
    if not _is_final_failure(row):
        return False
    failure = row.document
    if failure["job_failures"] >= job.failures:
        return False
    last_begun: int = failure.get(_LAST_BEGUN, row.place)  # earlier versions don't store it
    return last_begun >= last


def _is_final_failure(row: StepRow) -> bool:
    return row.state == StepState.FAILED and row.document.get("retry_ms") is None
