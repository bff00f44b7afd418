"""The verification of the log: of its chains, and of what agents, nodes and messages have done."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.oplog.authorship import Owner
from vox_mesh.model.oplog.chain import ANCHOR, LogEntry
from vox_mesh.model.oplog.checkpoint import LogCheckpoint
from vox_mesh.model.oplog.deletion import DeletedEntries
from vox_mesh.model.oplog.findings import with_findings
from vox_mesh.model.oplog.log_check import CommitOrderCheck, LogCheck
from vox_mesh.model.oplog.segment import ARCHIVE
from vox_mesh.model.oplog.verification import REKEY, ChainReport, ChainWitness, Key, RecordedHead
from vox_mesh.model.retention.deleted_jobs import is_remainder
from vox_mesh.oplog.archive.archived_log import ArchivedLog
from vox_mesh.oplog.archive.segment_ops import SegmentOps
from vox_mesh.oplog.audits.causal_audit import CausalAudit
from vox_mesh.oplog.audits.grant_log_audit import GrantLogAudit
from vox_mesh.oplog.audits.mail_audit import MailAudit
from vox_mesh.oplog.audits.node_audit import NodeAudit
from vox_mesh.oplog.audits.route_audit import RouteAudit
from vox_mesh.oplog.audits.verified_log import VerifiedLog, heads_after
from vox_mesh.oplog.grants.grant_log import GrantLog
from vox_mesh.oplog.pages import Pace, Pages, ReadEntries
from vox_mesh.oplog.past import LogPast
from vox_mesh.oplog.roles import Roles
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.oplog.witness import RememberedStore
from vox_mesh.store.rows import Rows, Value
from vox_mesh.store.schema.schema import VERSION, check_schema
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Statement
from vox_mesh.store.store import Store
from vox_mesh.store.targets.target import FileTarget

_log = logging.getLogger(__name__)

_SQL: Final = named("oplog")
_MAX_VERIFICATIONS: Final = 3


class LogEnd(NamedTuple):
    """The entry committed last, at some moment; without an op if there was none."""

    entry_id: int = 0
    op_id: str | None = None


class Moment(NamedTuple):
    """The log as of one commit; later commits are not part of it."""

    owner: Owner | None
    keys: list[Key]
    end: LogEnd


class _Verified(NamedTuple):
    """The reports on a log, and where it ended."""

    reports: list[ChainReport]
    end: LogEnd


class LogVerification:
    """Verify the log of one mesh."""

    def __init__(
        self,
        store: Store,
        roles: Roles,
        trusted_keys: TrustedKeys,
        past: LogPast,
        grant_log: GrantLog,
        remembered: Callable[[], Sequence[RememberedStore]],
    ) -> None:
        """`remembered` returns what nodes of this home remember of the database."""
        self._store = store
        self._roles = roles
        self._past = past
        self._remembered = remembered
        self._pages = Pages(store)
        self._segments = SegmentOps(store, trusted_keys)
        self._deletions = roles.deletions
        self.routes = RouteAudit(store, roles)
        self._grants = GrantLogAudit(store, grant_log)
        self._causes = CausalAudit(store)
        self._mail = MailAudit(store, trusted_keys)
        self._nodes = NodeAudit(store, trusted_keys)
        self.found_broken = 0
        """How many chains this process has found broken."""

        self._verified = VerifiedLog(store, trusted_keys)
        self.checkpoint: LogCheckpoint | None = None
        """How far the log was verified last; `None` if it was found broken."""

    async def keys(self) -> list[Key]:
        """Return the keys of all chains."""
        return [Key._make(row) for row in await self._read("keys")]

    async def moment(self) -> Moment:
        """Return a consistent view of the log while others write: its keys are those of its entries."""
        keys = await self.keys()
        while True:
            end = await self._end()
            before, keys = keys, await self.keys()
            if keys == before:
                return Moment(await self._roles.owner(), keys, end)

    async def verify(
        self,
        node_id: str | None,
        heads: Sequence[RecordedHead],
        archive: FileTarget | None,
        since: LogCheckpoint | None = None,
    ) -> list[ChainReport]:
        """Recompute all chains, or one, and replay routes, grants and admissions. Return the reports.

        With a checkpoint that the log fits, the chains are recomputed from there on.
        """
        await check_schema(self._ask, VERSION)
        self.checkpoint = None
        if since is not None and not await self._verified.fits(since):
            since = None
        reports = await self._read_whole(lambda: self._verify(node_id, heads, archive, since))
        if node_id is not None or any(each.problem for each in reports):
            self.checkpoint = None
        return reports

    async def verify_chains(self) -> list[ChainReport]:
        """Recompute all chains, and nothing else. Return a report on each."""
        reports = await self._read_whole(lambda: self._verify_chains(None, (), None, None))
        self.checkpoint = None  # nothing but the chains was verified
        return reports

    async def _read_whole(self, read: Callable[[], Awaitable[_Verified]]) -> list[ChainReport]:
        """Verify the log. If it was rolled back meanwhile, what was found is of two logs: verify it again.

        The same if the owner let entries be deleted meanwhile.
        """
        for _ in range(_MAX_VERIFICATIONS):
            began_at, deletions = await self._end(), await self._deletions.read()
            reports, end = await read()
            if not any(each.problem for each in reports):
                break
            if await self._has_entries(began_at, end) and deletions == await self._deletions.read():
                break
        self.found_broken += sum(bool(each.node_id and each.problem) for each in reports)
        return reports

    async def _verify(
        self,
        node_id: str | None,
        heads: Sequence[RecordedHead],
        target: FileTarget | None,
        since: LogCheckpoint | None,
    ) -> _Verified:
        past = await self._past.compare(self._remembered())  # before the log is read, which only grows
        heads = [*heads, *past.heads, *await self._nodes.heads()]
        segments = await self._segments.read()
        deletions = await self._deletions.read()
        deleted = DeletedEntries(each.deletion for each in deletions)
        archive = None if target is None else ArchivedLog(self._store, target, segments.recorded, deleted)
        reports, end = await self._verify_chains(node_id, heads, archive, since)
        read = self._remaining(deleted) if archive is None else archive.entries
        findings = await self.routes.findings(read, node_id, end.entry_id)
        findings += await self._grants.findings(read, node_id, end.entry_id)
        findings += await self._nodes.findings(node_id)
        deleted_before = deletions[-1].entry.op_id if deletions else ""
        first_id = 0 if since is None else since.end[0]
        findings += await self._causes.findings(node_id, end.entry_id, first_id, deleted_before)
        reports = with_findings(reports, findings)
        if node_id is None:
            for skipped in segments.skipped:
                _log.warning("op skipped: %s", skipped)
            faults = () if archive is None else archive.faults
            reports += [ChainReport("", 0, 0, 0, fault) for fault in faults]
            reports += [*past.reports, *await self._mail.reports()]
        return _Verified(reports, end)

    def _remaining(self, deleted: DeletedEntries) -> ReadEntries:
        """Return what reads the entries, without the ones to delete and what is left of pruned jobs."""

        async def read(node_id: str | None, up_to: int | None) -> AsyncIterator[list[LogEntry]]:
            async for page in self._pages.entries(node_id, up_to):
                yield [
                    entry
                    for entry in page
                    if not deleted.may_lack(entry) and not is_remainder(entry, deleted.jobs)
                ]

        return read if deleted else self._pages.entries

    async def _verify_chains(
        self,
        node_id: str | None,
        heads: Sequence[RecordedHead],
        archive: ArchivedLog | None,
        since: LogCheckpoint | None,
    ) -> _Verified:
        epoch, key_mark = await self._verified.state()
        _, keys, end = await self.moment()
        witness = await self._witness(keys, heads, end, since, has_archive=archive is not None)
        known = {} if since is None else since.chains
        check = LogCheck(witness, known) if archive is None else CommitOrderCheck(witness)
        if since is not None:
            pages = self._verified.entries(since, end.entry_id)
        else:
            pages = (self._pages if archive is None else archive).entries(node_id, end.entry_id)
        pace = Pace()
        async for page in pages:
            for entry in page:
                check.check(entry)
                await pace.keep(entry.payload)
        reports = check.finish(node_id)
        if since is not None:
            reports = with_findings(reports, await self._verified.findings(since, witness))
        if isinstance(check, LogCheck):
            made = LogCheckpoint(self._store.mesh_id, end, epoch, key_mark, check.checkpoints)
            self.checkpoint = replace(made, heads=heads_after(made, witness))
        return _Verified(reports, end)

    async def _witness(
        self,
        keys: Sequence[Key],
        heads: Sequence[RecordedHead],
        end: LogEnd,
        since: LogCheckpoint | None,
        *,
        has_archive: bool,
    ) -> ChainWitness:
        """Return a witness that has heard what ops up to the end, and others, state about chains."""
        witness = await self._roles.witness(keys)
        pace = Pace()
        first_id = 0 if since is None else since.end[0]
        anchors = (
            self._pages.of_kind(ANCHOR) if since is None else self._verified.anchors(since, end.entry_id)
        )
        for entries in (anchors, self._pages.of_kind(REKEY), self._pages.segments()):
            async for entry in entries:
                if entry.id <= end.entry_id and (entry.id > first_id or entry.kind == REKEY):
                    witness.hear(entry)
                elif entry.kind == ARCHIVE:
                    witness.hear_earlier(entry)
                await pace.keep(entry.payload)
        if not has_archive:  # with it, nothing is missing
            async for entry in self._pages.deletions():
                if entry.id <= end.entry_id:
                    witness.hear(entry)
        for head in (*heads, *(() if since is None else since.heads)):
            witness.hear_head(head)
        return witness

    async def _end(self) -> LogEnd:
        rows = await self._read("last_entry")
        return LogEnd(*rows[0]) if rows else LogEnd()

    async def _has_entries(self, *ends: LogEnd) -> bool:
        """Return whether these entries, and so all before them, are still in the log."""
        ids = canonical([end.op_id for end in ends])
        found = {LogEnd(row["id"], row["op_id"]) for row in await self._read("entries_of", ids, fresh=True)}
        return found.issuperset(end for end in ends if end.op_id is not None)

    async def _ask(self, statement: Statement) -> Rows:
        return await self._store.read(statement.sql, statement.params, fresh=True)

    async def _read(self, name: str, *values: Value, fresh: bool = False) -> Rows:
        return await self._store.read(_SQL[name], (*self._store.mesh_id, *values), fresh=fresh)
