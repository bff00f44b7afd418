"""Sizes: how large each table is, how much it grows in a day, and what is to be expected."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import BadStatement, DatabaseFault
from vox_mesh.model.retention.subjects import DAY_MS
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.runtime.retention.sweep import SQL
from vox_mesh.store.schema.probe import row_counts
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.store import Store

FORECAST_DAYS: Final = 30
_GROWTH_DAYS: Final = 7
"""Growth is the mean of up to this many days."""

_SAMPLE_DAYS: Final = 366


class TableSize(NamedTuple):
    """The size of a table in this database. Without two samples, its growth is not known."""

    table: str
    rows: int
    bytes: int | None
    """With its indexes, and with the rows of other meshes in the same database; `None`: not known."""
    rows_a_day: float | None
    bytes_a_day: float | None

    @property
    def forecast_bytes(self) -> int | None:
        """Return its size in 30 days, if it grows as it did."""
        if self.bytes is None or self.bytes_a_day is None:
            return None
        return max(0, round(self.bytes + FORECAST_DAYS * self.bytes_a_day))


class Sizes:
    """Measures the tables, and keeps a sample of each day."""

    def __init__(self, store: Store, clock: MeshClock) -> None:
        self._store = store
        self._clock = clock

    async def tables(self) -> list[TableSize]:
        """Return the sizes of all tables, the largest first."""
        rows, sizes = await row_counts(self._store), await self._bytes()
        today, growth = self._clock.now_ms // DAY_MS, await self._samples()
        found = []
        for table, count in rows.items():
            size = sizes.get(table)
            rows_a_day = _growth(growth.get(table, []), today, count)
            per_row = size / count if size is not None and count else None
            bytes_a_day = None if rows_a_day is None or per_row is None else rows_a_day * per_row
            found.append(TableSize(table, count, size, rows_a_day, bytes_a_day))
        return sorted(found, key=lambda each: (-(each.bytes or 0), -each.rows, each.table))

    async def keep_sample(self, guard: Statement) -> None:
        """Keep the number of rows of each table, once a day; the guard lets only the leader do so."""
        today = self._clock.now_ms // DAY_MS
        mesh = self._store.mesh_id
        if (await self._store.read(SQL["has_sample"], (*mesh, today))).value:
            return
        counts = orjson.dumps(await row_counts(self._store)).decode()
        await self._store.write(
            Script(
                guard,
                Statement(SQL["keep_sample"], (*mesh, today, counts)),
                Statement(SQL["prune_samples"], (*mesh, today - _SAMPLE_DAYS)),
            )
        )

    async def _samples(self) -> dict[str, list[tuple[int, int]]]:
        since = self._clock.now_ms // DAY_MS - _GROWTH_DAYS
        samples: dict[str, list[tuple[int, int]]] = {}
        rows: Any = await self._store.read(SQL["samples"], (*self._store.mesh_id, since))
        for table, day, count in rows:
            samples.setdefault(str(table), []).append((day, count))
        return samples

    async def _bytes(self) -> dict[str, int]:
        """Return the bytes of each table; none if the database can't say, as most servers can't."""
        try:
            rows = await self._store.read(SQL["bytes"])
        except (BadStatement, DatabaseFault):
            return {}
        return {str(row[0]): row[1] for row in rows}


def _growth(samples: list[tuple[int, int]], today: int, count: int) -> float | None:
    """Return by how many rows a table grows in a day, since the oldest sample of the last days."""
    earlier = [(day, rows) for day, rows in samples if day < today]
    if not earlier:
        return None
    day, rows = min(earlier)
    return (count - rows) / (today - day)
