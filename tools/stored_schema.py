"""Write a small database of the present schema, with rows of every plane in it, as SQL.

    python -m tools.stored_schema > tests/store/schemas/v8.sql

Run it before a release that will be followed by another schema version: tests migrate every stored database.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Final

from vox_mesh import JobContext, Mesh, load_settings
from vox_mesh.model.rhythm.budgets import Budget
from vox_mesh.node import MeshNode
from vox_mesh.oplog.op_kinds import OpKind

_TEMPO: Final = "cluster_id: stored\ninitial_bpm: 600\nbar_len_beats: 8\nphases: [plan, work, review]\n"
_SCORE: Final = "score: {phases: {plan: 2, work: 4, review: 2}, wait_budget: {help: 2}}"
_TIMEOUT_S: Final = 60.0


async def fill(folder: Path) -> None:
    """Use every plane of a mesh on the file at `folder / "stored.db"`, and leave."""
    tempo = folder / "tempo.yaml"
    tempo.write_text(_TEMPO)
    settings = load_settings(
        _env_file=None,
        enabled=True,
        home_dir=folder / "vox",
        db_path=folder / "stored.db",
        http=False,
        agent_id="ada",
        node_id="stored-1",
        tempo_policy=tempo,
    )
    async with asyncio.timeout(_TIMEOUT_S), Mesh.open(settings) as node:
        await _coordinate(node)
        await _work(node)
        await _play(node)


async def _coordinate(node: MeshNode) -> None:
    await node.locks.acquire("report", ttl=3_600)
    await node.locks.acquire("docs/**", ttl=3_600, shared=True)
    node.oplog.register(OpKind("note"))
    await node.oplog.append("note", {"text": "stored"})
    first = await node.messages.send("bob", {"words": 3}, sender="ada")
    await node.messages.send("bob", "still there", sender="ada")
    async for message in node.messages.receive("bob"):
        assert message.message_uuid == first.message_uuid
        await node.messages.ack(message)
        break


async def _work(node: MeshNode) -> None:
    @node.worker.handles("words.count")
    async def count(context: JobContext) -> int:
        context.log("counting")
        return len(context.payload.split())

    await node.job_kinds.limit("words.count", max_running=2)
    job = await node.jobs.schedule("words.count", "to be or not")
    async with node.worker.running():
        await node.jobs.wait(job)
    await node.jobs.schedule("pages.read", "later")


async def _play(node: MeshNode) -> None:
    await node.rhythm.budgets.set("agent:ada", Budget(max_bu=1_000))
    async with node.rhythm.phrase(_SCORE, task="read") as phrase, phrase.work():
        await asyncio.sleep(0.25)  # a beat takes 0.1 s
        phrase.useful()
    async for reports in node.store.watch("SELECT 1 FROM bar_reports"):
        if reports.rows:
            break


def dump(path: Path) -> str:
    """Return the database as SQL, without a trace of the machine it was made on."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE mesh_heartbeats SET host = 'stored', machine_id = 'stored', place = 'stored'"
        )
        return "\n".join(connection.iterdump()) + "\n"


def main() -> None:
    """Print the database."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(fill(Path(folder)))
        sys.stdout.write(dump(Path(folder) / "stored.db"))


if __name__ == "__main__":
    main()
