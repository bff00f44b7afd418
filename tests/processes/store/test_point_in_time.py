"""A server that keeps its log in a bucket: the mesh goes back to a point in time, on a new server."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.support.store.object_store import ObjectStore, open_object_store
from tools.homes import MESH
from tools.sqld import Server, free_port
from vox_mesh import Mesh, Settings
from vox_mesh.runtime.open_store import open_engine
from vox_mesh.runtime.restore import BackupFile, restore

_TO_BUCKET: Final = ("--enable-bottomless-replication",)
_POINT: Final = "restored"
_DEADLINE_S: Final = 60.0


def _ask(url: str, body: object, host: str, token: str = "") -> None:
    headers = {"content-type": "application/json", "host": f"{host}.x", "authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
    with urllib.request.urlopen(request, timeout=_DEADLINE_S) as answer:
        assert answer.status == 200


async def _later(bucket: ObjectStore) -> int:
    """Wait until the bucket has all that was written, and parts of the log after it; a second in between."""
    async with asyncio.timeout(_DEADLINE_S):
        second = await bucket.batch_after(int(time.time()) + 1) + 1
        await bucket.batch_after(second)
    return second


async def test_a_mesh_goes_back_to_a_point_in_time_by_the_log_that_its_server_keeps_in_a_bucket(
    tmp_path: Path,
) -> None:
    async with open_object_store() as bucket:
        server = Server(more_flags=_TO_BUCKET, environment=bucket.environment)
        try:
            await asyncio.to_thread(server.start)
            settings = MESH.settings(tmp_path / "mesh", server, node_id="one", tick="300ms")
            async with Mesh.open(settings) as node:
                early = await node.jobs.schedule("work", "early")
                lock = await node.locks.acquire("task:1", agent="ada")
                second = await _later(bucket)
                late = await node.jobs.schedule("work", "late")
                await _later(bucket)
        finally:
            server.stop()
        file = await asyncio.to_thread(_database_at, bucket, second, tmp_path)
    with Server() as new:
        moved = settings.model_copy(update=dict(MESH.settings(tmp_path / "new", new)) | _kept(settings))
        engine = await open_engine(moved)
        with BackupFile(file) as backup:
            await restore(engine, backup, timeout=_DEADLINE_S)
        await engine.close()
        async with Mesh.open(moved) as node:
            jobs = {job.job_id for job in await node.jobs.queries.listed(kind="work", limit=10)}
            assert jobs == {early.job_id}, late.job_id
            assert [each.problem for each in await node.oplog.verify() if each.problem] == []
            await node.locks.break_lock("task:1", "its holder is gone")
            assert (await node.locks.acquire("task:1", agent="bob")).fence_token > lock.fence_token + 2**31


def _kept(settings: Settings) -> dict[str, object]:
    return {name: getattr(settings, name) for name in ("scope_id", "node_id", "home_dir")}


def _database_at(bucket: ObjectStore, second: int, folder: Path) -> Path:
    """Let a server on an empty folder restore the database as of that second, and return its file."""
    admin = free_port()
    flags = (*_TO_BUCKET, "--enable-namespaces", "--admin-listen-addr", f"127.0.0.1:{admin}")
    with Server(more_flags=flags, environment=bucket.environment) as server:
        query = {"requests": [{"type": "execute", "stmt": {"sql": "SELECT 1"}}]}
        _ask(f"{server.url}/v2/pipeline", query, "default", server.token)
        fork = f"http://127.0.0.1:{admin}/v1/namespaces/default/fork/{_POINT}"
        at = datetime.fromtimestamp(second, UTC).replace(tzinfo=None)
        _ask(fork, {"timestamp": at.isoformat()}, "admin")
        _ask(f"{server.url}/v2/pipeline", query, _POINT, server.token)
        server.end()
        return (server.data / "dbs" / _POINT).rename(folder / _POINT) / "data"
