"""Rebuild: compare the table of jobs with the op log, and repair it, while the mesh is in use."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import BadValue, TooLarge
from vox_mesh.model.jobs.replay import COLUMNS, JobReplay, ReplayFinding, Row
from vox_mesh.model.jobs.routes import RouteHistory
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.deletion import NO_DELETIONS, DeletedEntries
from vox_mesh.model.oplog.verification import ChainReport, ChainWitness
from vox_mesh.oplog.grants.reservations import settle_all
from vox_mesh.oplog.oplog import OpLog
from vox_mesh.oplog.pages import Pace, Pages
from vox_mesh.store.rows import Rows
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.store import Store

_SQL: Final = named("rebuild")
_PAGE: Final = 500
_MAX_STATEMENTS: Final = 100
_MAX_SCRIPT_BYTES: Final = 2**18
_LEASE_SLACK_MS: Final = 1_000  # the maximum difference between the clocks of a mesh


class Difference(NamedTuple):
    """A value that differs between the table of jobs and the op log.

    The column is `job_id` for a missing or unknown row, `after` for the predecessors of a job, and `id` for
    its position among all jobs.
    """

    job_id: str
    column: str
    in_roster: Any
    by_log: Any


class _WrongJob(NamedTuple):
    """A job whose row differs from the log, with the correct row and the row that was read."""

    job_id: str
    differences: list[Difference]
    row: Row | None
    after: dict[str, str]
    seen: Row | None = None
    came_after: str | None = None


class Rebuild:
    """Replays the log from its beginning, and compares each page of jobs with it.

    A page is read together with the position of the log at that moment, and compared with the log up to that
    position, so concurrent commits make no difference.
    """

    def __init__(self, store: Store, oplog: OpLog | None = None) -> None:
        """Without `oplog`, the entries are taken as they are: no signature is verified, no route replayed."""
        self._store = store
        self._oplog = oplog
        self._mesh = store.mesh_id
        self._pages = Pages(store)
        self.findings: list[ReplayFinding] = []
        """The accepted ops in the log that the rules do not allow, of the last check or repair."""

    async def check(self) -> list[Difference]:
        """Return all differences between the table of jobs and the log."""
        return [each for wrong in await self._all_wrong_jobs() for each in wrong.differences]

    async def repair(self) -> list[Difference]:
        """Repair the table of jobs from the log, and return the differences.

        Jobs that change meanwhile and rows that are not in the log are left alone.
        Raises `BadValue` if the log has accepted ops that the rules do not allow.
        """
        wrong = await self._all_wrong_jobs()
        if self.findings:
            raise BadValue(
                f"the log has {len(self.findings)} accepted ops that the rules don't allow: "
                f"{self.findings[0].op_id}, {self.findings[0].what}",
                hint="run `vox-mesh oplog verify`: jobs can't be rebuilt from such a log",
            )
        for script in self._scripts(wrong):
            await self._store.write(script)
        return [difference for each in wrong for difference in each.differences]

    # --- comparing -------------------------------------------------------------------------------

    async def _all_wrong_jobs(self) -> list[_WrongJob]:
        """Compare all jobs; if the owner let entries be deleted meanwhile, compare them again."""
        while True:
            deleted = await self._deleted()
            wrong = [each async for each in self._wrong_jobs(deleted)]
            if deleted == await self._deleted():
                return wrong

    async def _deleted(self) -> DeletedEntries:
        return NO_DELETIONS if self._oplog is None else await self._oplog.deleted()

    async def _wrong_jobs(self, deleted: DeletedEntries) -> AsyncIterator[_WrongJob]:
        routes = RouteHistory(ChainWitness(None, ()) if self._oplog is None else await self._oplog.witness())
        log, pace = _Log(self._pages, JobReplay(routes, deleted.jobs), deleted), Pace()
        replay = log.replay
        self.findings = replay.findings
        if self._oplog is not None:
            self.findings += [_unproven(each) for each in await self._oplog.verify_chains() if each.problem]
        order: list[str] = []
        async for rows in self._read_pages():
            await log.advance(rows[0]["last_id"])
            for row in rows:
                await pace.keep(None)
                if row["job_id"] is not None:
                    order.append(row["job_id"])
                    if wrong := _compare(row.as_dict(), replay):
                        yield wrong
        for wrong in _missing(order, replay):
            yield wrong
        for wrong in _misplaced(order, replay):
            yield wrong

    async def _read_pages(self) -> AsyncIterator[Rows]:
        """Yield the rows in the order of scheduling, in pages that are consistent in themselves."""
        last, limit = 0, _PAGE
        while True:
            try:
                rows = await self._store.read(_SQL["page"], (*self._mesh, last, limit))
            except TooLarge:
                if limit == 1:
                    raise
                limit //= 2
                continue
            yield rows
            if len(rows) < limit:
                return
            last = rows[-1]["id"]
            if last is None:
                return

    # --- repairing -------------------------------------------------------------------------------

    def _scripts(self, wrong: Iterable[_WrongJob]) -> Iterator[Script]:
        statements: list[Statement] = []
        for each in wrong:
            statements += self._repair_statements(each)
            weight = sum(statement.weight for statement in statements)
            if len(statements) >= _MAX_STATEMENTS or weight >= _MAX_SCRIPT_BYTES:
                yield Script(*statements)
                statements = []
        counting = (Statement(_SQL[name], self._mesh) for name in ("forget_counts", "count"))
        # The triggers did not count what went wrong, and jobs may have ended by it.
        yield Script(*statements, *counting, *settle_all(self._mesh))

    def _repair_statements(self, wrong: _WrongJob) -> Iterator[Statement]:
        if wrong.row is None:
            return
        if wrong.seen is None:
            values = (*self._mesh, _json(wrong.row), wrong.came_after)
            yield Statement(_SQL["create"], values)
        else:
            seen = (wrong.seen["last_op"], wrong.seen["waits"])
            yield Statement(_SQL["rewrite"], (*self._mesh, _json(wrong.row), *seen))
        # Predecessors are set when a job is scheduled and never change.
        yield Statement(_SQL["unlink"], (*self._mesh, wrong.job_id))
        yield Statement(_SQL["link"], (*self._mesh, wrong.job_id, _json([*wrong.after.items()])))


class _Log:
    """The log, read in pages and replayed up to a given entry."""

    def __init__(self, pages: Pages, replay: JobReplay, deleted: DeletedEntries) -> None:
        self._pages = pages
        self._deleted = deleted
        self._read: deque[LogEntry] = deque()
        self._pace = Pace()
        self.replay = replay

    async def advance(self, last_id: int) -> None:
        """Replay all entries up to this one."""
        while self.replay.last_id < last_id:
            if not self._read:
                self._read.extend(await self._pages.after(self.replay.last_id, last_id))
                if not self._read:
                    return  # the log was truncated meanwhile
            if self._read[0].id > last_id:
                return
            entry = self._read.popleft()
            if self._deleted.may_lack(entry):
                self.replay.last_id = entry.id  # it may be deleted at any moment
            else:
                self.replay.follow(entry)
            await self._pace.keep(entry.payload)


def _unproven(report: ChainReport) -> ReplayFinding:
    what = f"the chain of {report.node_id} is broken at entry {report.seq}: {report.problem}"
    return ReplayFinding(0, report.op_id or "", "", "", what)


def _compare(seen: Row, replay: JobReplay) -> _WrongJob | None:
    job_id = seen["job_id"]
    row = replay.jobs.get(job_id)
    if row is None:
        return _WrongJob(job_id, [Difference(job_id, "job_id", job_id, None)], None, {}, seen)
    differences = [
        Difference(job_id, name, seen[name], row[name])
        for name in COLUMNS
        if not _agree(name, seen[name], row[name])
    ]
    after = replay.after.get(job_id, {})
    linked = dict(orjson.loads(seen["after"]))
    if linked != after:
        differences.append(Difference(job_id, "after", linked, after))
    return _WrongJob(job_id, differences, {**row}, after, seen) if differences else None


def _agree(name: str, seen: Any, by_log: Any) -> bool:
    """Return whether a value agrees with the log; lease ends may differ by the clocks' difference."""
    if name == "lease_until_ms" and None not in (seen, by_log):
        return bool(abs(seen - by_log) <= _LEASE_SLACK_MS)
    return bool(seen == by_log)


def _missing(order: Iterable[str], replay: JobReplay) -> Iterator[_WrongJob]:
    existing = set(order)
    before: str | None = None
    for job_id, row in replay.jobs.items():
        if job_id not in existing:
            missing = Difference(job_id, "job_id", None, job_id)
            yield _WrongJob(job_id, [missing], {**row}, replay.after.get(job_id, {}), came_after=before)
        before = job_id


def _misplaced(order: Iterable[str], replay: JobReplay) -> Iterator[_WrongJob]:
    positions = {job_id: position for position, job_id in enumerate(replay.jobs)}
    highest = -1
    for actual, job_id in enumerate(order):
        position = positions.get(job_id)
        if position is None:
            continue
        if position < highest:
            yield _WrongJob(job_id, [Difference(job_id, "id", actual, position)], None, {})
        highest = max(highest, position)


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
