"""A log that can't be written to stops those who write to it, and no one else."""

from __future__ import annotations

import pytest

from tests.support.oplog.authoring import NOTE, noted
from tests.support.store.tables import make_table
from vox_mesh import Outcome, Script, Statement
from vox_mesh.errors import ChainBroken
from vox_mesh.model.nodes.liveness import NodeState
from vox_mesh.node import MeshNode


async def test_writes_and_ticks_go_on_beside_a_log_that_lost_acknowledged_entries(mesh: MeshNode) -> None:
    table = await make_table(mesh.store)
    await mesh.oplog.append(NOTE, {})
    last = "SELECT max(seq) FROM agent_oplog WHERE scope_id = ?1 AND node_id = ?2"
    losing = f"DELETE FROM agent_oplog WHERE scope_id = ?1 AND node_id = ?2 AND seq = ({last})"
    await mesh.store.write(Script(Statement(losing, (mesh.store.writer_id.scope_id, mesh.identity.chain))))
    for _ in range(2):
        row = Script(Statement(f"INSERT INTO {table} (a) VALUES (1)"))
        verdicts = await mesh.store.write_all([noted(), row, noted()])
        assert [type(verdict) for verdict in verdicts] == [ChainBroken, Outcome, ChainBroken]
        await mesh.run_once()
    with pytest.raises(ChainBroken):
        await mesh.oplog.append(NOTE, {})
    (node,) = await mesh.nodes.live_nodes_from_db()
    assert node.state is NodeState.ALIVE
    assert (await mesh.store.read(f"SELECT count(*) FROM {table}", fresh=True)).value == 2


async def test_ops_that_were_refused_beside_others_leave_no_keys_behind_for_long(mesh: MeshNode) -> None:
    refused = Statement("INSERT INTO refusals (reason) VALUES ('x')", refusal="never")
    count = "SELECT count(*) FROM script_results WHERE scope_id = ?"
    for _ in range(12):
        await mesh.store.write_all([noted() if n % 4 else noted(refused) for n in range(64)])
    known = mesh.store._combiner._key_pruner
    left = (await mesh.store.read(count, (mesh.store.writer_id.scope_id,), fresh=True)).value
    assert left <= len(known._answered) + 8, "each of them is known to those who forget"
