"""The verified log: what a checkpoint says of the log, and whether the database still fits it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import orjson

from vox_mesh.model.oplog.chain import ANCHOR, LogEntry
from vox_mesh.model.oplog.checkpoint import LogCheckpoint
from vox_mesh.model.oplog.findings import ChainFinding
from vox_mesh.model.oplog.verification import ChainWitness, RecordedHead
from vox_mesh.oplog.pages import FIRST_POSITION, EntryFilter, Pages
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.store.schema.statements import named
from vox_mesh.store.store import Store

_SQL: Final = named("oplog")
_ROLLBACK: Final = named("rollback")
_HEADS: Final = 1_000


class VerifiedLog:
    """Go on from a checkpoint."""

    def __init__(self, store: Store, trusted_keys: TrustedKeys) -> None:
        self._store = store
        self._trusted_keys = trusted_keys
        self._pages = Pages(store)

    async def state(self) -> tuple[tuple[object, ...], str | None]:
        """Return the epoch of the database, and the mark of the ops that decide which keys count."""
        values = (*self._store.mesh_id, "", 0)
        row = (await self._store.read(_ROLLBACK["state"], values, fresh=True))[0]
        return (row["epoch"], row["epoch_op"], row["origin"]), await self._trusted_keys.read_mark()

    async def fits(self, checkpoint: LogCheckpoint) -> bool:
        """Return whether the log goes on from a checkpoint: nothing before it can count otherwise now."""
        if checkpoint.mesh != self._store.mesh_id:
            return False
        if await self.state() != (checkpoint.epoch, checkpoint.key_mark):
            return False
        last = await self._pages.after(checkpoint.end[0] - 1, checkpoint.end[0])
        if [each.op_id for each in last] != [checkpoint.end[1]]:
            return False
        return all([await self._has(each.seal) for each in checkpoint.chains.values()])

    async def _has(self, entry: LogEntry) -> bool:
        found = await self._pages.read("page_of_chain", entry.node_id, entry.seq - 1, None, None, limit=1)
        return found == [entry]

    async def entries(self, checkpoint: LogCheckpoint, up_to: int) -> AsyncIterator[list[LogEntry]]:
        """Yield the entries after a checkpoint in pages, chain by chain and in order."""
        async for chain in self._pages.chains(up_to):
            known = checkpoint.chains.get(chain)
            after_seq = FIRST_POSITION if known is None else known.seal.seq
            async for page in self._pages.entries(chain, up_to, after_seq=after_seq):
                yield page

    async def anchors(self, checkpoint: LogCheckpoint, up_to: int) -> AsyncIterator[LogEntry]:
        """Yield the anchors after a checkpoint."""
        after_id = checkpoint.end[0]
        while page := await self._pages.after(after_id, up_to, EntryFilter(kind=ANCHOR)):
            for entry in page:
                yield entry
            after_id = page[-1].id

    async def findings(self, checkpoint: LogCheckpoint, witness: ChainWitness) -> list[ChainFinding]:
        """Return what was recorded since of entries before a checkpoint, and does not fit them."""
        late = [
            RecordedHead(chain, seq, *head)
            for chain, known in checkpoint.chains.items()
            for seq, head in witness.heads.get(chain, {}).items()
            if seq <= known.seal.seq and not witness.deleted.has(chain, seq)
        ]
        found: list[ChainFinding] = []
        for first in range(0, len(late), _HEADS):
            part = late[first : first + _HEADS]
            pairs = orjson.dumps([(head.chain, head.seq) for head in part]).decode()
            rows = await self._store.read(_SQL["hashes_at"], (*self._store.mesh_id, pairs), fresh=True)
            hashes = {(row["node_id"], row["seq"]): row["hash"] for row in rows}
            found += [
                ChainFinding(head.chain, head.seq, "", f"{head.source} recorded another hash for it")
                for head in part
                if hashes.get((head.chain, head.seq)) != head.hash
            ]
        return found


def heads_after(checkpoint: LogCheckpoint, witness: ChainWitness) -> list[RecordedHead]:
    """Return what a witness has heard of entries after a checkpoint."""
    seals = {chain: known.seal.seq for chain, known in checkpoint.chains.items()}
    return [
        RecordedHead(chain, seq, *head)
        for chain, heads in witness.heads.items()
        for seq, head in heads.items()
        if seq > seals.get(chain, 0)
    ]
