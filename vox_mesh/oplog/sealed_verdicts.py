"""Sealed verdicts: whether an author has signed for what became of its op.

The hash of an entry does not cover its verdict, which any writer of the database can change. A seal does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from vox_mesh.model.base.canonical import canonical, parse
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.oplog.authorship import is_authentic
from vox_mesh.model.oplog.chain import SEAL, LogEntry, Sealing
from vox_mesh.model.oplog.verification import READ_ERRORS, Key
from vox_mesh.oplog.archive.deletion_ops import DeletionOps
from vox_mesh.oplog.pages import Pages
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Script
from vox_mesh.store.store import Store

_SQL: Final = named("oplog")
_RUN: Final = 64
_PAGE: Final = 1_000
_MAX_SEALS: Final = 8


def seal_script() -> Script:
    """Return the script of an op that covers all verdicts so far; its payload is computed at binding."""
    return Script(op=Op(SEAL, canonical({})))


class SealedVerdicts:
    """Compares verdicts with the seals of their chains. It reads the entries of about a minute."""

    def __init__(self, store: Store, deletions: DeletionOps) -> None:
        self._store = store
        self._deletions = deletions
        self._pages = Pages(store)
        self._sealed = Recent[str, frozenset[Any]](_MAX_SEALS)

    async def is_sealed(self, entry: LogEntry, keys: Sequence[Key]) -> bool:
        """Return whether the author, who has these keys, signed the entry and a seal that has its verdict."""
        return await self._compare(entry, keys) is True

    async def is_changed(self, entry: LogEntry, keys: Sequence[Key]) -> bool:
        """Return whether verdicts, that of the entry among them, are others than its author's seal has."""
        return await self._compare(entry, keys) is False

    async def _compare(self, entry: LogEntry, keys: Sequence[Key]) -> bool | None:
        """Return whether the seal after an entry has its verdict; `None` if its author signed none."""
        seals = await self._pages.read("seal_of", entry.node_id, entry.seq, limit=1)
        if not seals or not all([await self._is_authentic(each, keys) for each in (entry, seals[0])]):
            return None
        try:
            if await self._has_verdict(seals[0], entry):
                return True
            return None if await self._is_incomplete(entry, seals[0]) else False
        except READ_ERRORS:
            return False

    async def _is_incomplete(self, entry: LogEntry, seal: LogEntry) -> bool:
        """Return whether the owner let entries between an entry and the seal after it be deleted."""
        spans = (await self._deletions.deleted()).spans(seal.node_id)
        return any(entry.seq < first and last < seal.seq for first, last in spans)

    async def _is_authentic(self, entry: LogEntry, keys: Sequence[Key]) -> bool:
        run, _ = await self._pages.from_entry(entry.node_id, entry.seq, limit=_RUN)
        return is_authentic(entry, run, keys, self._store.writer_id.scope_id)

    async def _has_verdict(self, seal: LogEntry, entry: LogEntry) -> bool:
        """Return whether a seal has the verdict of the entry, and the log the ones that the seal has."""
        sealed = self._sealed.get(seal.hash)
        if sealed is None:
            sealed = await self._read_sealed(seal)
            if sealed is None:
                return False
            self._sealed[seal.hash] = sealed
        return entry.verdict in sealed

    async def _read_sealed(self, seal: LogEntry) -> frozenset[Any] | None:
        """Return the verdicts that an authentic seal has; `None` if the log has others."""
        stated = parse(seal.payload)
        sealing, verdicts = Sealing(), set[Any]()
        seq = stated["from"]
        while seq < seal.seq:
            values = (*self._store.mesh_id, seal.node_id, seq, seal.seq - 1, _PAGE)
            rows = await self._store.read(_SQL["verdicts_between"], values)
            if not rows:
                return None
            each: Any  # hostile values have another digest
            for each in rows:
                kind, *verdict = each
                sealing.add(kind, tuple(verdict))
                verdicts.add(tuple(verdict))
            seq = each["seq"] + 1
        return frozenset(verdicts) if sealing.claim(seal.seq) == stated else None
