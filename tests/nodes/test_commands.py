"""One-shot commands next to a node: the clock they author by, and the seal they leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.homes import FILE
from vox_mesh import Mesh, Settings
from vox_mesh.errors import ClockOff, Refused
from vox_mesh.model.oplog.chain import SEAL
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies


@pytest.mark.parametrize("off_s", [-3_600, 3_600])
async def test_a_command_on_a_machine_whose_clock_is_off_authors_nothing(
    anchored: MeshNode, neighbour: Settings, off_s: int
) -> None:
    usual = Dependencies()
    skewed = Dependencies(wall_ms=lambda: usual.wall_ms() + off_s * 1_000)
    before = await anchored.oplog.last_id()
    with pytest.raises(ClockOff):
        async with Mesh.open_command(neighbour, skewed) as command:
            await command.oplog.anchor()
    with pytest.raises(ClockOff):
        async with Mesh.open_command(neighbour, skewed) as command:
            await command.roles.designate_coordinator(anchored.identity.node_id)
    assert await anchored.oplog.last_id() == before


@pytest.mark.parametrize("off_s", [-30, 30])
async def test_a_command_takes_its_times_from_the_database(
    anchored: MeshNode, neighbour: Settings, off_s: int
) -> None:
    usual = Dependencies()
    skewed = Dependencies(wall_ms=lambda: usual.wall_ms() + off_s * 1_000)
    async with Mesh.open_command(neighbour, skewed) as command:
        entry = await command.oplog.find((await command.oplog.anchor()).key)
        assert command.clock.flagged == 0
    assert abs(int(entry.hlc[:13]) - anchored.clock.now_ms) < 10_000


@pytest.fixture
def neighbour(anchored: MeshNode, tmp_path: Path) -> Settings:
    """The settings of the node."""
    return FILE.settings(tmp_path, None, scope_id=anchored.store.writer_id.scope_id)


async def test_a_command_that_was_refused_is_sealed_too(anchored: MeshNode, neighbour: Settings) -> None:
    stranger = neighbour.model_copy(update={"node_id": "stranger"})
    with pytest.raises(Refused, match="not_the_owner"):
        async with Mesh.open_command(stranger) as command:
            await command.roles.designate_coordinator(anchored.identity.node_id)
    kinds = [(entry.kind, entry.accepted) for entry in await anchored.oplog.tail(node_id="stranger/cli")]
    assert kinds == [("DesignateCoordinator", 0), (SEAL, 1)]
    (chain,) = await anchored.oplog.verify("stranger/cli")
    assert (chain.problem, chain.sealed_to) == (None, 1)
