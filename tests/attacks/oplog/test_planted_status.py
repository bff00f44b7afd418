"""The status of tasks: what a node has not signed is not shown, wherever it is looked at."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tools.homes import FILE
from vox_mesh import Mesh
from vox_mesh.views.overview import overview


async def test_no_status_is_shown_that_its_node_did_not_sign(tmp_path: Path) -> None:
    async with Mesh.open(FILE.settings(tmp_path, None, node_id="ann")) as node:
        node.rhythm.status.claim("ada", "deploy", "executing")
        await node.rhythm.status.flush()
        assert [each.agent_id for each in await node.rhythm.statuses()] == ["ada"]
        with closing(sqlite3.connect(tmp_path / "vox" / "local.db", timeout=30)) as database, database:
            database.row_factory = sqlite3.Row
            row = dict(database.execute("SELECT * FROM status_claims").fetchone())
            planted = row | {"agent_id": "eve", "state": "done", "serial": row["serial"] + 1}
            names, places = ", ".join(planted), ", ".join("?" * len(planted))
            database.execute(
                f"INSERT INTO status_claims ({names}) VALUES ({places})", tuple(planted.values())
            )
        assert [each.agent_id for each in await node.rhythm.statuses(fresh=True)] == ["ada"]
        assert [each.agent_id for each in (await overview(node)).status] == ["ada"]
