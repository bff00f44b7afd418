"""Grants while the database is away: writes are spooled without waiting for it each time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools.homes import MESH
from tools.sqld import Server
from vox_mesh.mesh import Mesh
from vox_mesh.oplog.op_kinds import OpKind


async def test_a_node_that_knows_no_grants_asks_for_them_once_and_then_spools(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, kind = MESH.settings(tmp_path, server, db_deadline="500ms"), OpKind("test.note")
    async with Mesh.open(settings):
        pass
    server.kill()
    async with Mesh.open(settings) as node:
        node.oplog.register(kind)
        asked, read = 0, node.store.read

        async def count(sql: str, *more: Any, **options: Any) -> Any:
            nonlocal asked
            asked += "admitted_agents" in sql
            return await read(sql, *more, **options)

        monkeypatch.setattr(node.store, "read", count)
        monkeypatch.setattr(type(node.clock), "now_ms", property(lambda _: 1_000_000))
        outcomes = [await node.oplog.append(kind.name, {"n": n}) for n in range(5)]
        monkeypatch.undo()
        assert all(each.spooled for each in outcomes)
        assert asked == 1
