"""The sweep of artifacts, which are needed as long as a job that is kept has them as an output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vox_mesh.model.retention.pruning import Bounds, PrunableRow
from vox_mesh.runtime.retention.sweep import SQL, Sweep, json_list
from vox_mesh.store.store import Store

_JOBS: Final = 2_000
"""The jobs that are looked through at a time."""

_SLACK_MS: Final = 7_200_000
"""How long after the time of its last use, which is one to the hour, an artifact may have been used."""


class ArtifactSweep(Sweep):
    """Looks through the jobs that are old enough to have an artifact that is past its policy.

    A job that ends later writes the time of its use, which the statement that prunes the row checks.
    """

    __slots__ = ()

    async def page(self, store: Store, after: int, bounds: Bounds) -> list[PrunableRow]:
        """Return the next rows after a position."""
        rows = await super().page(store, after, bounds)
        due = [row for row in rows if bounds.is_due(row) and not row.is_needed]
        if not due:
            return rows
        until_ms = max(row.ended_ms or 0 for row in due) + _SLACK_MS
        used = await _outputs_among(store, [row.key for row in due], until_ms)
        return [row._replace(is_needed=True) if row.key in used else row for row in rows]


async def _outputs_among(store: Store, hashes: Sequence[str], until_ms: int) -> set[str]:
    """Return the hashes that are outputs of jobs, of those created until a time."""
    used: set[str] = set()
    after, mesh, wanted = 0, store.mesh_id, json_list(hashes)
    while True:
        last, first_ms = (await store.read(SQL["jobs_through"], (*mesh, after, _JOBS)))[0]
        if last is None or first_ms > until_ms:
            return used
        rows = await store.read(SQL["outputs_among"], (*mesh, after, last, wanted))
        used.update(row["hash"] for row in rows)
        after = last
