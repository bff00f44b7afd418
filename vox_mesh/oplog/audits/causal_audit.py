"""Causal audit: find the ops in the log that come before the ops which led to them."""

from __future__ import annotations

from typing import Final

from vox_mesh.model.oplog.findings import ChainFinding
from vox_mesh.store.schema.statements import named
from vox_mesh.store.store import Store

_SQL: Final = named("oplog")
_WINDOW: Final = 10_000  # entries in one statement


class CausalAudit:
    """Check the causes that accepted ops name. After a rollback some may be lost with the end of the log."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def findings(
        self, node_id: str | None, last_id: int, after_id: int = 0, deleted_before: str = ""
    ) -> list[ChainFinding]:
        """Return the ops of one chain, or of all, with a cause that is missing or was committed later.

        Only ops committed after one and up to another are looked at. Causes older than the op
        `deleted_before` may be missing: the check of their chains reports it unless they were deleted.
        """
        found: list[ChainFinding] = []
        for after in range(after_id, last_id, _WINDOW):
            values = (*self._store.mesh_id, node_id, after, min(after + _WINDOW, last_id), deleted_before)
            for row in await self._store.read(_SQL["effects_before_causes"], values):
                what = f"it names the op {row['cause']} as its cause, which was not there before it"
                found.append(ChainFinding(row["node_id"], row["seq"], row["op_id"], what))
        return found
