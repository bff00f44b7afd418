"""The audit of nodes: entries of a strict mesh whose node the owner has not admitted."""

from __future__ import annotations

from typing import Final

from vox_mesh.model.oplog.findings import ChainFinding
from vox_mesh.model.oplog.verification import RecordedHead
from vox_mesh.oplog.pages import Pages
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.store.schema.statements import named
from vox_mesh.store.store import Store

_HEADS: Final = named("oplog")["heads"]
_UNADMITTED: Final = "the mesh is strict, and the owner has not admitted its node"
_SOURCE: Final = "the op that made the mesh strict"


class NodeAudit:
    """Find chains that go on although they do not count."""

    def __init__(self, store: Store, trusted_keys: TrustedKeys) -> None:
        self._store = store
        self._trusted_keys = trusted_keys
        self._pages = Pages(store)

    async def heads(self) -> list[RecordedHead]:
        """Return where chains ended when the mesh became strict, as the owner has signed it."""
        ends = (await self._trusted_keys.admissions()).ends
        return [RecordedHead(chain, *end, _SOURCE) for chain, end in ends.items()]

    async def findings(self, node_id: str | None) -> list[ChainFinding]:
        """Return the first entry that does not count of one chain, or of each."""
        admissions = await self._trusted_keys.admissions()
        if not admissions.is_strict:
            return []
        found: list[ChainFinding] = []
        for row in await self._store.read(_HEADS, self._store.mesh_id, fresh=True):
            chain = row["node_id"]
            if node_id in (None, chain) and not await self._trusted_keys.is_admitted(chain):
                after = admissions.end_of(chain)
                rest = await self._pages.read("page_of_chain", chain, after, None, None, limit=1)
                found += [ChainFinding(chain, each.seq, each.op_id, _UNADMITTED) for each in rest]
        return found
