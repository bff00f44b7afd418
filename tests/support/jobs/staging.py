"""Jobs brought into any state on a real mesh, and the ops that are tried on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, NamedTuple

import orjson
import pytest
import pytest_asyncio

from tests.support.messages.messaging import crowd_on, write
from tests.support.oplog.authoring import assert_sound
from tests.support.running.lengths import in_turn
from tools.homes import MEMORY, MESH
from vox_mesh.errors import Refused
from vox_mesh.jobs.rebuild import Rebuild
from vox_mesh.jobs.transitions import Item
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import Job, JobState
from vox_mesh.node import MeshNode
from vox_mesh.store.script import Outcome, Script, new_key

KIND: Final = "test.work"
LEASE_MS: Final = 600_000
LAPSED_MS: Final = 1
"""When a lease that was let lapse ended."""


def item_of(manifest: Manifest, **more: Any) -> dict[str, Any]:
    """What a ScheduleJob says of a job."""
    fields = {"ulid": new_key(), "seed": "0" * 64, "priority": 1, "max_attempts": 3, "backoff_ms": 1_000}
    core = {"job_id": manifest.content_id, "kind": manifest.job_kind, "manifest": manifest.core()}
    return {**core, **fields, **more}


def new_item(kind: str = KIND, **more: Any) -> dict[str, Any]:
    """The same of a job that is not there yet."""
    return item_of(Manifest.of(kind=kind, payload=None, nonce=new_key()), **more)


def held(job_id: str, token: int, **more: Any) -> dict[str, Any]:
    """What an op says of a job that is held under a token."""
    return {"job_id": job_id, "claim_token": token, **more}


async def lapse(node: MeshNode, *job_ids: str) -> None:
    """Have the leases of these jobs be over."""
    of_job = "scope_id = ?1 AND repository_id = ?2 AND job_id = ?3 AND lease_until_ms IS NOT NULL"
    for job_id in job_ids:
        await write(node, f"UPDATE jobs SET lease_until_ms = ?4 WHERE {of_job}", job_id, LAPSED_MS)


async def row_of(node: MeshNode, job_id: str) -> dict[str, Any] | None:
    """All that the database has of a job."""
    sql = "SELECT * FROM jobs WHERE scope_id = ?1 AND repository_id = ?2 AND job_id = ?3"
    rows = await node.store.read(sql, (*node.store.mesh_id, job_id), fresh=True)
    return rows[0].as_dict() if rows else None


async def schedule(node: MeshNode, **more: Any) -> str:
    """A new job; its id."""
    item = new_item(**more)
    await node.store.write(node.jobs.transitions.schedule([item]))
    return str(item["job_id"])


async def claim(node: MeshNode, job_id: str, token: int = 1) -> None:
    """Have the node claim a job."""
    await node.store.write(node.jobs.transitions.claim([held(job_id, token)], LEASE_MS))


async def start(node: MeshNode, job_id: str, token: int = 1) -> None:
    """Have the node claim a job, and begin to work on it."""
    await claim(node, job_id, token)
    await node.store.write(node.jobs.transitions.start([held(job_id, token)]))


async def end(node: MeshNode, job_id: str, state: JobState, token: int = 1) -> None:
    """Have the node do a job."""
    await start(node, job_id, token)
    await node.store.write(node.jobs.transitions.complete([held(job_id, token, state=state)]))


async def brought(node: MeshNode, state: JobState | None, **more: Any) -> Job | None:
    """A job in that state, which the node had in hand: only the state speaks against what it does next."""
    if state is None:
        return None
    job_id = await schedule(node, **more)
    moves = node.jobs.transitions
    if state in (JobState.SUCCEEDED, JobState.FAILED):
        await end(node, job_id, state)
    elif state is JobState.CLAIMED:
        await claim(node, job_id)
    else:
        await start(node, job_id)
        if state is JobState.PENDING:
            await node.store.write(moves.yield_jobs([held(job_id, 1)]))
        elif state is JobState.ABORTED:
            await node.store.write(moves.abort([{"job_id": job_id}], "test"))
    job = await node.jobs.find(job_id)
    assert job.state == state
    return job


def _with_token(build: Callable[..., Script], by: int = 0, **more: Any) -> Callable[[str, int], Script]:
    return lambda job_id, token: build([held(job_id, token + by, **more)])


def ways(node: MeshNode) -> Mapping[str, Callable[[str, int], Script]]:
    """All that can be tried on a job, given its id and its token."""
    moves = node.jobs.transitions

    def claim(items: list[Item]) -> Script:
        return moves.claim(items, LEASE_MS)

    def renew(items: list[Item]) -> Script:
        return moves.renew(items, LEASE_MS)

    def give_back(items: list[Item]) -> Script:
        return moves.yield_jobs(items, claimer=node.identity.node_id)

    return {
        "claim": _with_token(claim, by=1),
        "renew": _with_token(renew),
        "start": _with_token(moves.start),
        "succeed": _with_token(moves.complete, state="succeeded", exit_code=0, output_artifacts=[{"n": 1}]),
        "fail": _with_token(moves.complete, state="failed", exit_code=3, reason="broken"),
        "yield": _with_token(give_back, reason="later"),
        "take back": _with_token(moves.yield_jobs),
        "fail for now": _with_token(give_back, failed=True),
        "expire": _with_token(moves.expire),
        "abort": lambda job_id, _: moves.abort([{"job_id": job_id}], "test"),
    }


class Pair(NamedTuple):
    """Two nodes of one mesh."""

    one: MeshNode
    two: MeshNode


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=in_turn(MEMORY, MESH), ids=str)
async def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Pair]:
    """Two nodes on homes where the statements differ in who runs them, for all tests of a module."""
    case = request.param
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    async with crowd_on(case, tmp_path_factory.mktemp("pair"), server) as crowd:
        yield Pair(await crowd.node("one"), await crowd.node("two"))


async def verdict_of(node: MeshNode, script: Script) -> tuple[int, str | None]:
    """What the log says of a script: whether it was accepted, and the reason if not."""
    entry = await node.oplog.find(script.key)
    return entry.accepted, entry.reason


async def refused(node: MeshNode, script: Script, *job_ids: str) -> Refused:
    """Have a script refused; the log has it as refused, and the rows of the jobs are as they were."""
    before = [await row_of(node, job_id) for job_id in job_ids]
    with pytest.raises(Refused) as refusal:
        await node.store.write(script)
    await node.store.synced()
    assert await verdict_of(node, script) == (0, refusal.value.reason)
    assert [await row_of(node, job_id) for job_id in job_ids] == before
    return refusal.value


async def found(node: MeshNode, job_id: str) -> Job:
    """The job in its current state."""
    return await node.jobs.find(job_id)


def moved(outcome: Outcome) -> list[str]:
    """The jobs that an op says it moved."""
    job_ids: list[str] = orjson.loads(outcome.rows[0]["moved"])
    return job_ids


async def assert_rebuilt(node: MeshNode) -> None:
    """The roster is what the log says, but for leases that were let lapse; and the log is whole."""
    await node.store.synced()
    rebuild = Rebuild(node.store)
    differences = [each for each in await rebuild.check() if each.in_roster != LAPSED_MS]
    assert (differences, rebuild.findings) == ([], [])
    await assert_sound(node)
