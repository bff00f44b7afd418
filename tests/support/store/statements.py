"""Statements that a test runs directly on an engine."""

from __future__ import annotations

from vox_mesh.store.batch import Batch
from vox_mesh.store.engine import Engine


async def run(engine: Engine, *statements: str) -> None:
    """Run statements in one transaction, as a writer of the database would."""
    batch = Batch()
    for sql in statements:
        batch.add(sql)
    result = await engine.run(batch.seal())
    assert result.committed, result.error
