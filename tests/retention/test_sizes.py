"""Sizes: rows and bytes by table, growth since earlier days, and a forecast."""

from __future__ import annotations

from tests.support.jobs.staging import schedule
from vox_mesh.node import MeshNode
from vox_mesh.runtime.retention.sizes import TableSize
from vox_mesh.testing import MeshHarness


async def size_of(node: MeshNode, table: str) -> TableSize:
    """The size of a table."""
    await node.store.synced()
    return next(each for each in await node.retention.sizes.tables() if each.table == table)


async def test_the_size_of_each_table_is_known(any_node: MeshNode) -> None:
    before = await size_of(any_node, "jobs")
    await schedule(any_node)
    after = await size_of(any_node, "jobs")
    assert after.rows == before.rows + 1
    assert (after.rows_a_day, after.bytes_a_day, after.forecast_bytes) == (None, None, None)


async def test_growth_is_that_since_an_earlier_day(harness: MeshHarness) -> None:
    node = await harness.node()
    await node.retention.prune_some()
    await harness.clock.advance("1d")
    for _ in range(6):
        await schedule(node)
    await harness.clock.advance("1d")
    found = await size_of(node, "jobs")
    assert (found.rows, found.rows_a_day) == (6, 3)
    assert found.bytes is not None
    assert found.forecast_bytes == round(found.bytes * 16)


async def test_samples_are_kept_once_a_day(harness: MeshHarness) -> None:
    node = await harness.node()
    for _ in range(3):
        await node.retention.prune_some()
    count = "SELECT count(DISTINCT day) FROM size_samples"
    assert (await node.store.read(count, fresh=True)).value == 1
    await harness.clock.advance("400d")
    await node.retention.prune_some()
    assert (await node.store.read(count, fresh=True)).value == 1
