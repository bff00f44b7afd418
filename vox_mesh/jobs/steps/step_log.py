"""The log of steps of one attempt: what earlier attempts have stored, and what this one appends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadValue, MeshError, Refused, StaleClaim, StepOrderChanged
from vox_mesh.jobs.proof.artifacts import Artifact, Artifacts
from vox_mesh.jobs.steps.job_steps import STEPS_LOST, AppendedRows, JobSteps, weight_of
from vox_mesh.jobs.steps.settled_writes import write_steps
from vox_mesh.jobs.steps.step_writer import MAX_BYTES, StepWriter
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
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.store import Store

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
        writer: StepWriter,
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
        self._writer = writer
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
        self._is_writing = False
        self._taken: list[StepRow] = []
        """The pending rows that the writer of the node has taken."""
        self._alone: asyncio.Task[None] | None = None
        """Writes what does not share a write with other attempts."""
        self._may_be_more = job.attempts > 1
        """Whether the table may have rows that are not believed; the next write removes them."""
        self._failure: Exception | None = None
        self._rested: asyncio.Future[None] | None = None
        """Done once nothing is being stored; from when there is one, nothing more is appended."""
        self._context = copy_context()

    # --- the steps of another job ----------------------------------------------------------------

    async def take_over(self, rows: Sequence[StepRow], effects: Sequence[Statement]) -> None:
        """Store rows of another job as those of this one, as far as no earlier attempt has."""
        own = [row._replace(claim_token=self._job.claim_token, signature=None) for row in rows]
        for start in range(len(self.rows), len(own), _MAX_TAKEN):
            await self._write_guarded(self._next(own[start : start + _MAX_TAKEN]), effects)
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
        document: Mapping[str, Any] | str,
        artifact: Artifact | None = None,
        effects: Sequence[Statement] = (),
    ) -> None:
        """Store a row with a document, or its canonical text, and its effects. It is durable on return.

        Raises `StaleClaim` if the claim is over. While the database is unavailable it waits: the loss of the
        claim cancels the attempt.
        """
        if self._failure is not None:
            raise self._failure
        if self._rested is not None:
            raise StaleClaim(StaleClaim.code, statement=0)
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append(_Append(self._row(place, state, document), artifact, effects, written))
        if not self._is_writing:
            self._is_writing = True
            self._writer.submit(self)
        await written

    def wait_for(self, place: Place, document: Mapping[str, Any]) -> None:
        """Note what a step waits for: it is stored together with the suspension of the job."""
        self._waiting[place.number] = self._row(place, StepState.WAITING, document)

    def waiting_rows(self) -> Sequence[Statement]:
        """Return the statements that store what the job waits for; none if that is stored already.

        They remove all rows that this log does not know: it must be at `rest`.
        """
        rows = [row for _, row in sorted(self._waiting.items())]
        return self._after_stored(self._steps.signed(self._job.job_id, self._linked(rows))) if rows else ()

    def count_waits(self) -> None:
        """Count what the job waits for, once it is stored."""
        self._count_rows(self._waiting.values())

    def _count_rows(self, rows: Iterable[StepRow]) -> None:
        for row in rows:
            self._counts[row.kind, row.state] += 1

    def _row(self, place: Place, state: StepState, document: Mapping[str, Any] | str) -> StepRow:
        now_ms = self._clock.now_ms
        times = (min(place.began_ms, now_ms), now_ms)
        # Its parts were checked.
        value = document if isinstance(document, str) else canonical(document, max_depth=None)
        return StepRow(
            *(0, place.number, place.name, place.kind.value, state.value, value),
            *(self._job.claim_token, *times, *_UNSIGNED),
        )

    async def rest(self) -> Exception | None:
        """Append nothing more, and let what is being stored settle: only then all stored rows are known.

        Return why they are not, if the outcome of a write is unknown; what is refused is known not to be
        stored. An end of the claim cancels the attempt, and thereby this.
        """
        self._rested = asyncio.get_running_loop().create_future()
        due, self._pending = self._pending[len(self._taken) :], self._pending[: len(self._taken)]
        for each in due:
            each.written.cancel()
        if self._taken:
            await self._rested
        else:
            await self._writer.withdraw(self)
        return None if isinstance(self._failure, Refused) else self._failure

    async def close(self) -> None:
        """Write nothing more: the attempt has ended."""
        self._failure = StaleClaim(StaleClaim.code, statement=0)
        pending, self._pending = self._pending, []
        for each in pending:
            each.written.cancel()
        await self._writer.withdraw(self)
        if (alone := self._alone) is not None:
            alone.cancel()
            await asyncio.wait([alone])

    # --- writing ---------------------------------------------------------------------------------

    def take(self) -> AppendedRows | None:
        """Return the pending rows, not signed, for the write that the attempts of a node share.

        `None` if other statements belong to them, or other rows may be in their places: then they are written
        alone, guarded by the claim.
        """
        due = self._due()
        try:
            rows = self._next([self._with_last_begun(each.row) for each in due])
            others = self._others_of(due)
        except Exception as error:  # every caller must get an answer
            self._fail(error)
            return None
        self._taken = rows
        if others or self._may_be_more:
            self._write_alone(others)
            return None
        return AppendedRows(self._job, self.rows[-1] if self.rows else None, rows)

    def settle(self, stored: Sequence[StepRow] | None) -> None:
        """Answer the callers whose rows are stored. If not all are, the guarded write says why."""
        if self._failure is not None:
            return
        if stored is not None:
            self.rows += stored
            self._answer()
        else:
            self._may_be_more = True
            self._write_alone(())

    def _write_alone(self, others: Sequence[Statement]) -> None:
        writing = self._write_taken(others)
        self._alone = asyncio.create_task(writing, name="vox-mesh-steps", context=self._context)

    async def _write_taken(self, others: Sequence[Statement]) -> None:
        try:
            await self._write_guarded(self._taken, others)
        except Exception as error:  # every caller must get an answer
            self._alone = None
            self._fail(error)
        else:
            self._alone = None
            self._answer()

    def _answer(self) -> None:
        """Answer the callers whose rows are stored, and go on with what is pending since."""
        self._count_rows(self._taken)
        done, self._pending = self._pending[: len(self._taken)], self._pending[len(self._taken) :]
        for each in done:
            if not each.written.done():
                each.written.set_result(None)
        self._end_write()
        self._is_writing = bool(self._pending)
        if self._is_writing:
            self._writer.submit(self)

    def _fail(self, error: Exception) -> None:
        """Write nothing more, and tell all callers why."""
        self._failure = error
        pending, self._pending = self._pending, []
        for each in pending:
            if not each.written.done():
                each.written.set_exception(error)
        self._end_write()

    def _end_write(self) -> None:
        self._taken = []
        if self._rested is not None and not self._rested.done():
            self._rested.set_result(None)

    def _due(self) -> Sequence[_Append]:
        """Return what is pending, as much as one write may have."""
        left = MAX_BYTES
        for count, each in enumerate(self._pending):
            left -= weight_of(each.row)
            if left < 0 and count:
                return self._pending[:count]
        return self._pending

    def _others_of(self, appends: Sequence[_Append]) -> list[Statement]:
        """Return the statements that belong to these rows."""
        if all(each.artifact is None and not each.effects for each in appends):
            return []
        artifacts = self._artifacts.rows(each.artifact for each in appends if each.artifact is not None)
        effects = [effect for each in appends for effect in each.effects]
        return effects if artifacts is None else [artifacts, *effects]

    def _next(self, rows: Sequence[StepRow]) -> list[StepRow]:
        """Return rows as they follow the ones that are stored. Raises `BadValue` if these are too many."""
        if len(self.rows) + len(rows) > MAX_STEPS:
            raise BadValue(f"a job must have at most {MAX_STEPS} stored steps", hint="start another job")
        return self._linked(rows)

    def _with_last_begun(self, row: StepRow) -> StepRow:
        """Return a row that, if its step failed for good, names the last place that has begun until now."""
        if not _is_final_failure(row):
            return row
        return row._replace(value=canonical({**row.document, _LAST_BEGUN: self._count}, max_depth=None))

    async def _write_guarded(self, rows: Sequence[StepRow], others: Sequence[Statement]) -> None:
        """Store rows and what belongs to them, or neither. Raises the reason."""
        rows = self._steps.signed(self._job.job_id, rows)
        try:
            await self._write_script(self._after_stored(rows), others)
        except Refused as refused:
            if refused.reason != STEPS_LOST:
                raise
            await self._write_script(self._all_again(rows), others)
        self.rows += rows
        self._may_be_more = False

    async def _write_script(self, rows: Sequence[Statement], others: Sequence[Statement]) -> None:
        script = Script(self.fence(), *rows, *others)
        verdict = await write_steps(self._store, script, f"job_id={self._job.job_id}")
        if isinstance(verdict, MeshError):
            raise verdict

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
        """Return rows with their numbers and links, after the rows that are stored."""
        linked: list[StepRow] = []
        link = self.rows[-1].link if self.rows else NO_LINK
        for seq, row in enumerate(rows, len(self.rows) + 1):
            linked.append(row.placed(seq, self._job.last_op, link))
            link = linked[-1].link
        return linked


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
