"""Progress: the progress, log and checkpoints of running jobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import MeshError, StaleClaim
from vox_mesh.jobs.queries import JobQueries
from vox_mesh.jobs.steps.job_checkpoints import JobCheckpoints
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.jobs.records import Job
from vox_mesh.store.rows import Value
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_SQL: Final = named("job_notes")
_FLUSH_S: Final = 0.2
_MAX_PIECE_CHARS: Final = 16 * 1024
_MAX_LOG_CHARS: Final = 256 * 1024
_TRUNCATED: Final = "(more was printed than is kept here; all of it is in the artifacts)\n"


class Note(NamedTuple):
    """The last reported progress and checkpoint of a job."""

    progress: float | None = None
    message: str | None = None
    checkpoint: str | None = None
    noted_ms: int | None = None


class Piece(NamedTuple):
    """A piece of a job's output or log."""

    n: int
    claim_token: int
    stream: str
    text: str
    logged_ms: int


class Notes:
    """Reads the progress, log and checkpoints of jobs."""

    def __init__(self, store: Store, queries: JobQueries) -> None:
        self._store = store
        self._mesh = store.mesh_id
        self._queries = queries

    async def of(self, job_id: str, *, fresh: bool = False) -> Note:
        """Return the last reported progress and checkpoint of a job."""
        rows = await self._store.read(_SQL["noted"], (*self._mesh, job_id), fresh=fresh)
        return Note._make(rows[0]) if rows else Note()

    async def logged(self, job_id: str, *, after: int = 0, limit: int = 1_000) -> list[Piece]:
        """Return a job's output and log after a piece."""
        rows = await self._store.read(_SQL["logged"], (*self._mesh, job_id, after, limit), fresh=True)
        return [Piece._make(row) for row in rows]

    async def logged_last(self, job_id: str, limit: int) -> list[Piece]:
        """Return the last pieces of a job's output and log, oldest first."""
        rows = await self._store.read(_SQL["logged_last"], (*self._mesh, job_id, limit), fresh=True)
        return [Piece._make(row) for row in reversed(rows)]

    async def follow(
        self, job_id: str, *, after: int = 0, debounce_s: float = 0.0
    ) -> AsyncGenerator[Piece, None]:
        """Yield a job's output and log after a piece, as it arrives, until the job is terminal.

        It is read after each commit, or `debounce_s` seconds later together with those of later commits.
        """
        async for turn in self._store.changes(debounce_s=debounce_s):
            has_ended = False
            with turn.retry_if_unavailable():
                has_ended = (await self._queries.find(job_id, fresh=True)).has_ended
                while pieces := await self.logged(job_id, after=after):
                    for piece in pieces:
                        after = piece.n
                        yield piece
            if has_ended:
                return


class Notebook:
    """Writes the progress and log of one attempt in intervals, and its checkpoints at once."""

    def __init__(self, store: Store, job: Job, checkpoints: JobCheckpoints, logged: int = 0) -> None:
        """`logged` is how many characters the attempt has logged before."""
        self._store = store
        self._job = job
        self._checkpoints = checkpoints
        self._claim = (*store.mesh_id, job.job_id, job.claim_token)
        self._loop = asyncio.get_running_loop()
        self._progress: tuple[float | None, str | None] | None = None
        self._pieces: list[tuple[str, str]] = []
        self._logged = logged
        self._flushing: asyncio.Task[None] | None = None

    def progress(self, fraction: float | None, message: str | None) -> None:
        """Report progress; `None` keeps the earlier value."""
        earlier = self._progress or (None, None)
        self._progress = (
            earlier[0] if fraction is None else fraction,
            earlier[1] if message is None else _sanitize(message),
        )
        self._flush_soon()

    def log(self, stream: str, text: str) -> None:
        """Add text to the log; it is truncated at the maximum size."""
        if not text or self._logged > _MAX_LOG_CHARS:
            return
        text = _sanitize(text)
        self._logged += len(text)
        if self._logged > _MAX_LOG_CHARS:
            text = text[: _MAX_LOG_CHARS - self._logged] + _TRUNCATED
        self._pieces += [
            (stream, text[i : i + _MAX_PIECE_CHARS]) for i in range(0, len(text), _MAX_PIECE_CHARS)
        ]
        self._flush_soon()

    async def checkpoint(self, value: Any) -> None:
        """Save a checkpoint. Raises `StaleClaim` if the claim is over."""
        guard = Statement(_SQL["refuse_if_over"], self._claim, refusal=StaleClaim.code)
        signed = self._checkpoints.sign(self._job, canonical(value))
        await self._store.write(Script(guard, self._note(None, None, *signed)))

    def _flush_soon(self) -> None:
        if self._flushing is None:
            self._flushing = self._loop.create_task(self._flush_later(), name="vox-mesh-notes")

    async def _flush_later(self) -> None:
        await asyncio.sleep(_FLUSH_S)
        self._flushing = None
        await self.flush()

    async def flush(self) -> None:
        """Write pending progress and log; they are dropped if the database is unavailable."""
        statements = []
        if self._progress is not None:
            statements.append(self._note(*self._progress, None, None, None))
        if self._pieces:
            pieces = orjson.dumps(self._pieces).decode()
            statements.append(Statement(_SQL["log"], (*self._claim, pieces)))
        self._progress, self._pieces = None, []
        if statements:
            try:
                await self._store.write(Script(*statements))
            except MeshError as error:
                _log.warning("job progress not written: job_id=%s: %s", self._claim[2], error.line)
            except Exception as error:  # must not fail the attempt
                self._store.faults.note("notes", error)

    async def close(self) -> None:
        """Write pending progress and log."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        await self.flush()

    def _note(self, *values: Value) -> Statement:
        """Return the statement for progress, message and a signed checkpoint; `None`: unchanged."""
        return Statement(_SQL["note"], (*self._claim, *values))


def _sanitize(text: str) -> str:
    """Replace lone surrogates, which can't be encoded, and NULs, which may end a text."""
    return text.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
