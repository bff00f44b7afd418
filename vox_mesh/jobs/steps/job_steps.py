"""The steps of jobs as they are stored: read, verified and signed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.jobs.steps.attempt_signatures import AttemptSignatures
from vox_mesh.model.jobs.records import Job
from vox_mesh.model.jobs.steps.step_row import MAX_STEPS, NO_LINK, StepRow, unbroken
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script, Shape, Statement
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_SQL: Final = named("job_steps")
_PREFIX: Final = b"vox-mesh steps 1\n"
_PAGE: Final = 500
_ROW_BYTES: Final = 512  # of a row without its value

_SUBJECT: Final = "steps"
_APPEND: Final = Shape(
    "job_steps.append",
    (),
    answer=_SQL["append_of_jobs"],
    columns=("job_id", "claim_token"),
    subject=lambda _: _SUBJECT,
    repeatable=True,
    single_statement=_SQL["append_alone"],
    single_statement_values=("rows",),
)
"""The steps of many jobs, in one statement: it refuses those of a job whose claim is over, only them."""

STEPS_LOST: Final = "steps_lost"
"""The refusal of rows whose predecessors are not stored any more."""


def weight_of(row: StepRow) -> int:
    """Return the approximate size of a row in bytes."""
    return len(row.value) + _ROW_BYTES


class AppendedRows(NamedTuple):
    """Rows that are appended to those of a running job, and the last one that is stored before them."""

    job: Job
    last: StepRow | None
    rows: Sequence[StepRow]

    @property
    def attempt(self) -> tuple[str, int]:
        """Return the job, and which attempt at it appends: an earlier one may not have ended here."""
        return self.job.job_id, self.job.claim_token

    @property
    def weight(self) -> int:
        """Return their approximate size in bytes."""
        return sum(map(weight_of, self.rows))

    def encoded(self) -> list[tuple[str | int | None, ...]]:
        """Return the rows with what must hold when they are stored."""
        seq, link = (0, NO_LINK) if self.last is None else (self.last.seq, self.last.link)
        before = (self.job.claimer, seq, link, self.job.job_id)
        return [(*before, *row) for row in self.rows]


def append_if_held(appended: Iterable[AppendedRows]) -> Script:
    """Return the script that appends rows of several jobs, each after the last one that is stored.

    It answers the job and the attempt of each row that is stored. A row is not if the claim of its job is
    over, the last row is not stored, another row is in its place, or we are superseded.
    """
    rows = [row for each in appended for row in each.encoded()]
    return Script.of(_APPEND, {"rows": orjson.dumps(rows).decode()})


class StepPage(NamedTuple):
    """Some steps of a job, in the order of its handler."""

    rows: list[StepRow]
    """Of these steps, in the order of writing."""
    signed: list[StepRow]
    """The ones among them that a worker of the job has signed."""
    names: Mapping[str, int]
    """How many of the steps before these have a name."""


class JobSteps:
    """Reads the steps of jobs, and believes the ones that a worker of the job has signed."""

    def __init__(self, store: Store, signatures: AttemptSignatures) -> None:
        self._store = store
        self._mesh = store.mesh_id
        self._signatures = signatures

    async def verified(self, job_id: str) -> list[StepRow]:
        """Return the rows that the workers of a job have signed, in order; others are logged and left out."""
        rows = await self.stored(job_id)
        found = await self.signed_of(job_id, rows)
        if len(found) < len(rows):
            _log.error(
                "steps ignored, no worker that started the job has signed them: job_id=%s from=%d to=%d",
                *(job_id, len(found) + 1, len(rows)),
            )
        return found

    async def stored(self, job_id: str) -> list[StepRow]:
        """Return the rows of a job as the table has them, unverified."""
        return await self._read("of_job", job_id, 0)

    async def _read(self, name: str, job_id: str, after: int, *last: int) -> list[StepRow]:
        rows: list[StepRow] = []
        while len(rows) < MAX_STEPS:
            page = await self._store.read(_SQL[name], (*self._mesh, job_id, after, _PAGE, *last), fresh=True)
            rows += [StepRow._make(row) for row in page]
            if len(page) < _PAGE or type(rows[-1].seq) is not int:
                break
            after = rows[-1].seq
        return rows[:MAX_STEPS]

    async def page(self, job_id: str, after: int, limit: int) -> StepPage:
        """Return the steps that follow a place, as the table has them, and the ones of them that are signed.

        Of the rows before them only the last link is looked at: `verified` says whether all are believed.
        """
        found = await self._store.read(_SQL["page"], (*self._mesh, job_id, after, limit), fresh=True)
        if not found:
            return StepPage([], [], {})
        values: Any = found[0]
        to_place, before, last = values
        rows = await self._read("between", job_id, max(before - 1, 0), last)
        link = NO_LINK
        if before and rows and rows[0].seq == before and rows[0].is_sound():
            link = rows.pop(0).link
        signed = await self.signed_of(job_id, rows, before, link)
        names = await self._store.read(_SQL["names"], (*self._mesh, job_id, after), fresh=True)
        sound = (row for row in rows if row.is_sound())
        return StepPage(
            [row for row in sound if after < row.place <= to_place],
            signed,
            {row[0]: row[1] for row in names},
        )

    async def signed_of(
        self, job_id: str, rows: Sequence[StepRow], after: int = 0, link: str = NO_LINK
    ) -> list[StepRow]:
        """Return the rows that the workers of a job have signed, of rows that follow one with this link."""
        return await self._signed(job_id, unbroken(rows, after, link))

    async def _signed(self, job_id: str, rows: Sequence[StepRow]) -> list[StepRow]:
        """Return the rows up to the last signature of the last attempt whose node has signed.

        A link covers all rows before it: of each attempt, only the last signature is verified.
        """
        last: dict[str, StepRow] = {row.start_op: row for row in rows if row.signature is not None}
        for row in sorted(last.values(), key=lambda each: -each.seq):
            text = self._signed_text(job_id, row)
            if await self._signatures.is_authentic(job_id, row.start_op, text, row.signature or ""):
                return list(rows[: row.seq - rows[0].seq + 1])
        return []

    def signed(self, job_id: str, rows: Sequence[StepRow]) -> list[StepRow]:
        """Return rows that are written together, with the signature of this node in the last one."""
        last = rows[-1]
        signature = self._signatures.sign(self._signed_text(job_id, last))
        return [*rows[:-1], last._replace(signature=signature)]

    def signed_together(self, appended: Sequence[AppendedRows]) -> list[AppendedRows]:
        """Return rows of several jobs that are written together, with signatures of this node."""
        texts = [self._signed_text(each.job.job_id, each.rows[-1]) for each in appended]
        signatures = self._signatures.sign_together(texts)
        return [
            each._replace(rows=[*each.rows[:-1], each.rows[-1]._replace(signature=signature)])
            for each, signature in zip(appended, signatures, strict=True)
        ]

    def discard(self, job_id: str, last: int) -> Statement:
        """Return the statement that removes the rows after the last one that is believed."""
        return Statement(_SQL["discard"], (*self._mesh, job_id, last))

    def require(self, job_id: str, row: StepRow) -> Statement:
        """Return a guard that a row is still stored: a rollback of the database may have lost it."""
        return Statement(
            _SQL["refuse_unless_stored"], (*self._mesh, job_id, row.seq, row.link), refusal=STEPS_LOST
        )

    def append(self, job_id: str, rows: Sequence[StepRow]) -> Statement:
        """Return the statement that appends rows."""
        return Statement(_SQL["append"], (*self._mesh, job_id, _encoded(rows)))

    def _signed_text(self, job_id: str, row: StepRow) -> bytes:
        return _PREFIX + orjson.dumps([*self._mesh, job_id, row.start_op, row.seq, row.link])


def _encoded(rows: Sequence[StepRow]) -> str:
    return orjson.dumps([tuple(row) for row in rows]).decode()
