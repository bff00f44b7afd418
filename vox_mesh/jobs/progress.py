"""Notes: what is said of a job while it runs, for whoever waits for it: progress, log, checkpoints."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import DatabaseUnavailable, MeshError, StaleClaim
from vox_mesh.jobs.queries import JobQueries
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.jobs.records import Job
from vox_mesh.store.rows import Value
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_SQL: Final = named("job_notes")
_FLUSH_S: Final = 0.2
_MAX_PIECE: Final = 16 * 1024
_MAX_LOGGED: Final = 256 * 1024
_CUT: Final = "(more was printed than is kept here; all of it is in the artifacts)\n"
_AGAIN_S: Final = 1.0


class Note(NamedTuple):
    """The last that was said of a job."""

    progress: float | None = None
    message: str | None = None
    checkpoint: str | None = None
    noted_ms: int | None = None


class Piece(NamedTuple):
    """A piece of what a job has printed or logged."""

    n: int
    claim_token: int
    stream: str
    text: str
    logged_ms: int


class Notes:
    """Reads what was said of jobs."""

    def __init__(self, store: Store, queries: JobQueries) -> None:
        self._store = store
        self._mesh = store.tenant[:2]
        self._queries = queries

    async def of(self, job_id: str, *, fresh: bool = False) -> Note:
        """The last that was said of a job."""
        rows = await self._store.read(_SQL["noted"], (*self._mesh, job_id), fresh=fresh)
        return Note._make(rows[0]) if rows else Note()

    async def logged(self, job_id: str, *, after: int = 0, limit: int = 1_000) -> list[Piece]:
        """What a job has printed and logged, after some piece."""
        rows = await self._store.read(_SQL["logged"], (*self._mesh, job_id, after, limit), fresh=True)
        return [Piece._make(row) for row in rows]

    async def follow(self, job_id: str, *, after: int = 0) -> AsyncGenerator[Piece, None]:
        """What a job prints and logs after some piece, as it comes, until it has ended."""
        has_ended = False
        while not has_ended:
            seen = self._store.change_count
            with suppress(DatabaseUnavailable):  # it goes on when the database is back
                has_ended = (await self._queries.find(job_id, fresh=True)).has_ended
                while pieces := await self.logged(job_id, after=after):
                    for piece in pieces:
                        after = piece.n
                        yield piece
            if not has_ended:
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if self._store.is_in_touch else _AGAIN_S):
                        await self._store.changed(seen)


class Notebook:
    """Writes what one attempt says: progress and log every now and then, a checkpoint at once."""

    def __init__(self, store: Store, job: Job) -> None:
        self._store = store
        self._whose = (*store.tenant[:2], job.job_id, job.claim_token)
        self._loop = asyncio.get_running_loop()
        self._progress: tuple[float | None, str | None] | None = None
        self._pieces: list[tuple[str, str]] = []
        self._logged = 0
        self._flushing: asyncio.Task[None] | None = None

    def progress(self, fraction: float | None, message: str | None) -> None:
        """Say how far it is; of several in a row the last one counts, and what is not said stays."""
        earlier = self._progress or (None, None)
        self._progress = (
            earlier[0] if fraction is None else fraction,
            earlier[1] if message is None else _plain(message),
        )
        self._flush_soon()

    def log(self, stream: str, text: str) -> None:
        """Say something; what exceeds the bound is not kept here."""
        if not text or self._logged > _MAX_LOGGED:
            return
        text = _plain(text)
        self._logged += len(text)
        if self._logged > _MAX_LOGGED:
            text = text[: _MAX_LOGGED - self._logged] + _CUT
        self._pieces += [(stream, text[i : i + _MAX_PIECE]) for i in range(0, len(text), _MAX_PIECE)]
        self._flush_soon()

    async def checkpoint(self, value: Any) -> None:
        """Keep where another attempt may go on; `StaleClaim` if this one is over."""
        over = Statement(_SQL["refuse_if_over"], self._whose, refusal=StaleClaim.code)
        await self._store.write(Script(over, self._note(None, None, canonical(value))))

    def _flush_soon(self) -> None:
        if self._flushing is None:
            self._flushing = self._loop.create_task(self._flush_later(), name="vox-mesh-notes")

    async def _flush_later(self) -> None:
        await asyncio.sleep(_FLUSH_S)
        self._flushing = None
        await self.flush()

    async def flush(self) -> None:
        """Write what was said; it is lost if the database is away: it is only of use meanwhile."""
        statements = []
        if self._progress is not None:
            statements.append(self._note(*self._progress, None))
        if self._pieces:
            pieces = orjson.dumps(self._pieces).decode()
            statements.append(Statement(_SQL["log"], (*self._whose, pieces)))
        self._progress, self._pieces = None, []
        if statements:
            try:
                await self._store.write(Script(*statements))
            except MeshError as error:
                _log.warning("what job %s said was not kept: %s", self._whose[2], error.line)
            except Exception as error:  # notes are not the work
                self._store.faults.note("notes", error)

    async def close(self) -> None:
        """Write what is left."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        await self.flush()

    def _note(self, progress: float | None, message: str | None, checkpoint: str | None) -> Statement:
        values: tuple[Value, ...] = (*self._whose, progress, message, checkpoint)
        return Statement(_SQL["note"], values)


def _plain(text: str) -> str:
    """Nothing but text: what has half surrogates in it can't be written, and a NUL may end it."""
    return text.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
