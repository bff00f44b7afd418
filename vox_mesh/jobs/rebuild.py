"""Rebuild: the roster beside the log that it follows from, compared and mended while the mesh goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import BadValue, TooLarge
from vox_mesh.model.jobs.replay import COLUMNS, JobReplay, ReplayFinding, Row
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.oplog.pace import Pace
from vox_mesh.oplog.pages import Pages
from vox_mesh.store.rows import Rows
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.store import Store

_SQL: Final = named("rebuild")
_PAGE: Final = 500
_AT_ONCE: Final = 100
_AT_ONCE_BYTES: Final = 2**18
_LEASE_SLACK_MS: Final = 1_000  # as far as the clocks of a mesh may be apart


class Difference(NamedTuple):
    """A value that the roster has and the log does not say, or the other way round.

    Where a whole row is missing, or too much, it is the column `job_id`; `after` is what the job waits for,
    and `id` its place among all.
    """

    job_id: str
    column: str
    in_roster: Any
    by_log: Any


class _Wrong(NamedTuple):
    """A job whose row is not as the log has it; what it should be, and how it was found."""

    job_id: str
    differences: list[Difference]
    row: Row | None
    after: dict[str, str]
    seen: Row | None = None
    came_after: str | None = None


class Rebuild:
    """Follows the log from its beginning, and compares each page of the roster with it.

    A page is read together with the end of the log at that moment, and compared with the log up to there: so
    what is committed meanwhile makes no difference.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._mesh = store.tenant[:2]
        self._pages = Pages(store)
        self.findings: list[ReplayFinding] = []
        """What the last look found in the log that the rules don't allow."""

    async def check(self) -> list[Difference]:
        """All that the roster has otherwise than the log."""
        return [each async for wrong in self._wrong() for each in wrong.differences]

    async def repair(self) -> list[Difference]:
        """Make the roster as the log has it; what was different.

        What is moved meanwhile is left alone, and so are rows of which the log knows nothing.
        """
        wrong = [each async for each in self._wrong()]
        if self.findings:
            raise BadValue(
                f"the log has {len(self.findings)} accepted ops that the rules don't allow: "
                f"{self.findings[0].op_id}, {self.findings[0].what}",
                hint="run `vox-mesh oplog verify`: a roster made from such a log is worth nothing",
            )
        for script in self._scripts(wrong):
            await self._store.write(script)
        return [difference for each in wrong for difference in each.differences]

    # --- comparing -------------------------------------------------------------------------------

    async def _wrong(self) -> AsyncIterator[_Wrong]:
        log, pace = _Log(self._pages), Pace()
        replay = log.replay
        self.findings = replay.findings
        order: list[str] = []
        async for rows in self._queries():
            await log.advance(rows[0]["last_id"])
            for row in rows:
                await pace.keep(None)
                if row["job_id"] is not None:
                    order.append(row["job_id"])
                    if wrong := _compared(row.as_dict(), replay):
                        yield wrong
        for wrong in _missing(order, replay):
            yield wrong
        for wrong in _misplaced(order, replay):
            yield wrong

    async def _queries(self) -> AsyncIterator[Rows]:
        """The rows in the order in which their jobs came, in pages of one moment each."""
        last, most = 0, _PAGE
        while True:
            try:
                rows = await self._store.read(_SQL["page"], (*self._mesh, last, most))
            except TooLarge:
                if most == 1:
                    raise
                most //= 2
                continue
            yield rows
            if len(rows) < most:
                return
            last = rows[-1]["id"]
            if last is None:
                return

    # --- mending ---------------------------------------------------------------------------------

    def _scripts(self, wrong: Iterable[_Wrong]) -> Iterator[Script]:
        statements: list[Statement] = []
        for each in wrong:
            statements += self._mending(each)
            weight = sum(statement.weight for statement in statements)
            if len(statements) >= _AT_ONCE or weight >= _AT_ONCE_BYTES:
                yield Script(*statements)
                statements = []
        counting = (Statement(_SQL[name], self._mesh) for name in ("forget_counts", "count"))
        yield Script(*statements, *counting)  # no trigger has seen what went wrong

    def _mending(self, wrong: _Wrong) -> Iterator[Statement]:
        if wrong.row is None:
            return
        if wrong.seen is None:
            values = (*self._mesh, _json(wrong.row), wrong.came_after)
            yield Statement(_SQL["create"], values)
        else:
            seen = (wrong.seen["last_op"], wrong.seen["waits"])
            yield Statement(_SQL["rewrite"], (*self._mesh, _json(wrong.row), *seen))
        # They came with the job, and stay as they are: nothing newer can be among them.
        yield Statement(_SQL["unlink"], (*self._mesh, wrong.job_id))
        yield Statement(_SQL["link"], (*self._mesh, wrong.job_id, _json([*wrong.after.items()])))


class _Log:
    """The log, read in pages, and followed up to any of its entries."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._read: deque[LogEntry] = deque()
        self._pace = Pace()
        self.replay = JobReplay()

    async def advance(self, last_id: int) -> None:
        """Follow all entries up to this one."""
        while self.replay.last_id < last_id:
            if not self._read:
                self._read.extend(await self._pages.read("after", self.replay.last_id, None, None))
                if not self._read:
                    return  # somebody has cut it off meanwhile
            if self._read[0].id > last_id:
                return
            entry = self._read.popleft()
            self.replay.follow(entry)
            await self._pace.keep(entry.payload)


def _compared(seen: Row, replay: JobReplay) -> _Wrong | None:
    job_id = seen["job_id"]
    row = replay.jobs.get(job_id)
    if row is None:
        return _Wrong(job_id, [Difference(job_id, "job_id", job_id, None)], None, {}, seen)
    differences = [
        Difference(job_id, name, seen[name], row[name])
        for name in COLUMNS
        if not _agree(name, seen[name], row[name])
    ]
    after = replay.after.get(job_id, {})
    linked = dict(orjson.loads(seen["after"]))
    if linked != after:
        differences.append(Difference(job_id, "after", linked, after))
    return _Wrong(job_id, differences, {**row}, after, seen) if differences else None


def _agree(name: str, seen: Any, by_log: Any) -> bool:
    """Whether a value is as the log has it; the end of a lease is the database's, and told by the author."""
    if name == "lease_until_ms" and None not in (seen, by_log):
        return bool(abs(seen - by_log) <= _LEASE_SLACK_MS)
    return bool(seen == by_log)


def _missing(order: Iterable[str], replay: JobReplay) -> Iterator[_Wrong]:
    there = set(order)
    before: str | None = None
    for job_id, row in replay.jobs.items():
        if job_id not in there:
            gone = Difference(job_id, "job_id", None, job_id)
            yield _Wrong(job_id, [gone], {**row}, replay.after.get(job_id, {}), came_after=before)
        before = job_id


def _misplaced(order: Iterable[str], replay: JobReplay) -> Iterator[_Wrong]:
    places = {job_id: place for place, job_id in enumerate(replay.jobs)}
    furthest = -1
    for found, job_id in enumerate(order):
        place = places.get(job_id)
        if place is None:
            continue
        if place < furthest:
            yield _Wrong(job_id, [Difference(job_id, "id", found, place)], None, {})
        furthest = max(furthest, place)


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
