"""Jobs are pruned by age and number, never while something needs them, and the log knows that they were."""

from __future__ import annotations

import orjson
import pytest

from tests.support.jobs.staging import end, schedule
from tests.support.messages.messaging import write
from vox_mesh import JobContext, Script, Statement
from vox_mesh.errors import NotKnown
from vox_mesh.jobs.rebuild import Rebuild
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import JobState
from vox_mesh.model.retention.ops import PRUNE
from vox_mesh.node import MeshNode
from vox_mesh.runtime.retention.pruner import Swept
from vox_mesh.store.script import Op
from vox_mesh.testing import MeshHarness
from vox_mesh.views.jobs import bundle_proof, verify_proof

_ROWS = "SELECT count(*) FROM {} WHERE scope_id = ?1 AND repository_id = ?2"


async def keep_no_jobs(node: MeshNode, kind: str = "") -> None:
    """Set the policy that every ended job is one too many."""
    await node.retention.set("jobs", kind=kind, age_ms=None, max_rows=0)
    await node.store.synced()


async def jobs_of(node: MeshNode) -> list[str]:
    """The ids of all jobs, in the order of scheduling."""
    await node.store.synced()
    sql = "SELECT job_id FROM jobs WHERE scope_id = ?1 AND repository_id = ?2 ORDER BY id"
    return [str(row[0]) for row in await node.store.read(sql, node.store.mesh_id, fresh=True)]


async def rows_of(node: MeshNode, table: str) -> int:
    """How many rows a table has."""
    return int((await node.store.read(_ROWS.format(table), node.store.mesh_id, fresh=True)).value)


async def pruned(node: MeshNode) -> dict[str, tuple[int, int]]:
    """Prune all that is due: how many rows of each subject went, and how many were needed."""
    await node.store.synced()
    planned = await node.retention.preview()
    done = await node.retention.prune_all()
    assert planned == done
    await node.store.synced()
    return {each.subject: (each.pruned, each.needed) for each in done if each.pruned or each.needed}


async def done(node: MeshNode, **more: object) -> str:
    """A job that has succeeded."""
    job_id = await schedule(node, **more)
    await end(node, job_id, JobState.SUCCEEDED)
    return job_id


async def test_ended_jobs_go_with_all_that_is_theirs(any_node: MeshNode) -> None:
    node = any_node
    gone = [await done(node) for _ in range(3)]
    for job_id in gone:
        note = "INSERT INTO job_notes VALUES (?1, ?2, ?3, 1, 0.5, 'half', NULL, 1, NULL, NULL)"
        await write(node, note, job_id)
        log = "INSERT INTO job_logs VALUES (?1, ?2, ?3, 0, 1, 'log', 'text', 1)"
        await write(node, log, job_id)
    waiting = await schedule(node)
    await keep_no_jobs(node)
    assert await pruned(node) == {"jobs": (3, 0)}
    assert await jobs_of(node) == [waiting]
    for table in ("job_notes", "job_logs", "job_predecessors"):
        assert await rows_of(node, table) == 0
    assert await node.jobs.queries.counts() == {"test.work": {"pending": 1}}
    rebuild = Rebuild(node.store, node.oplog)
    assert (await rebuild.check(), rebuild.findings) == ([], [])
    assert [each.problem for each in await node.oplog.verify_chains()] == [None]


async def test_only_jobs_past_their_age_go(harness: MeshHarness) -> None:
    node = await harness.node()
    old = await done(node)
    await harness.clock.advance("20d")
    new = await done(node)
    await schedule(node)
    assert await pruned(node) == {}
    await harness.clock.advance("11d")
    assert old not in await jobs_of(node)  # in its turn
    assert new in await jobs_of(node)
    assert await Rebuild(node.store, node.oplog).check() == []


async def test_a_kind_with_a_policy_of_its_own_is_kept_by_that(node: MeshNode) -> None:
    kept = [await done(node, kind="audit.trail") for _ in range(3)]
    [await done(node) for _ in range(2)]
    last = await schedule(node)
    await keep_no_jobs(node)
    await node.retention.set("jobs", kind="audit.trail", age_ms=None, max_rows=2)
    assert await pruned(node) == {"jobs": (3, 0)}
    assert await jobs_of(node) == [*kept[1:], last]
    await node.retention.unset("jobs", kind="audit.trail")
    assert await pruned(node) == {"jobs": (2, 0)}


async def test_a_chain_goes_from_its_end_and_not_before_it(node: MeshNode) -> None:
    first = await schedule(node)
    second = await schedule(node, after=[(first, "success")])
    third = await schedule(node, after=[(second, "end")])
    await schedule(node)
    await end(node, first, JobState.SUCCEEDED)
    await end(node, second, JobState.FAILED)
    await keep_no_jobs(node)
    assert await pruned(node) == {"jobs": (0, 2)}
    await end(node, third, JobState.SUCCEEDED)
    assert await pruned(node) == {"jobs": (3, 0)}
    rebuild = Rebuild(node.store, node.oplog)
    assert (await rebuild.check(), rebuild.findings) == ([], [])


async def test_a_job_is_kept_as_long_as_its_retry(node: MeshNode) -> None:
    failed = await schedule(node)
    await end(node, failed, JobState.FAILED)
    retry = (await node.jobs.retry(failed)).job_id
    await schedule(node)
    await keep_no_jobs(node)
    assert await pruned(node) == {"jobs": (0, 1)}
    await end(node, retry, JobState.SUCCEEDED)
    assert await pruned(node) == {"jobs": (2, 0)}


@pytest.mark.parametrize(
    "needs",
    [
        "INSERT INTO mcp_tasks VALUES (?1, ?2, 'hash', ?3, 'a', NULL, 1)",
        "INSERT INTO job_cleanups (scope_id, repository_id, job_id) VALUES (?1, ?2, ?3)",
        "INSERT INTO job_crons VALUES (?1, ?2, 'nightly', '0 0 * * *', 'UTC', '{}', '{}', 9e15, 1, ?3, 1)",
        "INSERT INTO job_rules VALUES (?1, ?2, 'r', 'k', '{}', '{}', '{}', 0, 0, 0, NULL, ?3, 1)",
    ],
    ids=["task", "compensations", "cron", "rule"],
)
async def test_a_job_that_something_refers_to_stays(local: MeshNode, needs: str) -> None:
    needed, other = await done(local), await done(local)
    last = await schedule(local)
    await write(local, needs, needed)
    await keep_no_jobs(local)
    assert await pruned(local) == {"jobs": (1, 1)}
    assert await jobs_of(local) == [needed, last]
    assert other not in await jobs_of(local)


async def test_the_jobs_of_a_run_stay_until_all_have_ended(local: MeshNode) -> None:
    jobs = {"one": {"kind": "work"}, "two": {"kind": "work"}}
    run = await local.workflows.run({"name": "two", "jobs": jobs})
    first, second = (job.job_id for job in run.jobs)
    await schedule(local)
    await keep_no_jobs(local)
    await end(local, first, JobState.SUCCEEDED)
    assert await pruned(local) == {"jobs": (0, 1)}
    await end(local, second, JobState.SUCCEEDED)
    assert await pruned(local) == {"jobs": (2, 0)}


async def test_the_newest_row_stays_so_that_its_number_is_not_issued_again(local: MeshNode) -> None:
    await done(local)
    last = await done(local)
    await keep_no_jobs(local)
    assert await pruned(local) == {"jobs": (1, 1)}
    assert await jobs_of(local) == [last]


async def test_a_pruned_job_can_be_scheduled_again(local: MeshNode) -> None:
    manifest = Manifest.of(kind="work", payload=1)
    ((first, *_),) = await local.jobs.schedule_all([manifest], new=False)
    await end(local, first, JobState.SUCCEEDED)
    await schedule(local)
    await keep_no_jobs(local)
    await pruned(local)
    with pytest.raises(NotKnown):
        await local.jobs.find(first)
    ((again, *_),) = await local.jobs.schedule_all([manifest], new=False)
    assert again == first
    await end(local, first, JobState.SUCCEEDED)
    rebuild = Rebuild(local.store, local.oplog)
    assert (await rebuild.check(), rebuild.findings) == ([], [])


async def test_a_row_that_no_op_has_pruned_is_missed(local: MeshNode) -> None:
    hidden, gone = await done(local), await done(local)
    await schedule(local)
    await write(local, "DELETE FROM jobs WHERE scope_id = ?1 AND repository_id = ?2 AND job_id = ?3", hidden)
    await keep_no_jobs(local)
    await pruned(local)
    assert [each[:2] for each in await Rebuild(local.store).check()] == [(hidden, "job_id")]
    await Rebuild(local.store).repair()
    assert hidden in await jobs_of(local)
    assert gone not in await jobs_of(local)


@pytest.mark.parametrize("case", ["running", "young", "needed", "another time"])
async def test_an_op_that_prunes_what_it_may_not_is_found(local: MeshNode, case: str) -> None:
    job_id = await schedule(local)
    at_ms = local.clock.now_ms
    if case == "needed":
        await schedule(local, after=[(job_id, "end")])
    if case != "running":
        await end(local, job_id, JobState.SUCCEEDED)
    if case in ("needed", "another time"):
        await local.retention.set("jobs", age_ms=None, max_rows=0)
    if case == "another time":
        at_ms += 10**10
    payload = orjson.dumps({"at_ms": at_ms, "jobs": [{"job_id": job_id}]}, option=orjson.OPT_SORT_KEYS)
    gone = Statement("DELETE FROM jobs WHERE job_id = ?1", (job_id,))
    await local.store.write(Script(gone, op=Op(PRUNE, payload.decode())))
    rebuild = Rebuild(local.store)
    assert [each[:2] for each in await rebuild.check()] == [(job_id, "job_id")]
    assert [each.kind for each in rebuild.findings] == [PRUNE]


async def test_the_proof_of_a_pruned_job_is_still_verified(harness: MeshHarness) -> None:
    node = await harness.node()

    @node.worker.handles("work")
    async def work(context: JobContext) -> str:
        return "done"

    await node.worker.start()
    proved, other = [(await node.jobs.schedule("work", each)).job_id for each in (1, 2)]
    for job_id in (proved, other):
        await node.jobs.wait(job_id, timeout=30)
    ulid = (await node.jobs.find(proved)).ulid
    before = await verify_proof(node, proved)
    await keep_no_jobs(node)
    assert await pruned(node) == {"jobs": (1, 1)}
    for reference in (proved, proved[:8], ulid):
        after = await verify_proof(node, reference)
        assert (after.valid, after.trailers) == (before.valid, before.trailers) == (True, after.trailers)
        assert "was pruned at" in after.remarks[0]
    assert (await bundle_proof(node, proved)).text
    await write(node, "DELETE FROM jobs WHERE scope_id = ?1 AND repository_id = ?2 AND job_id = ?3", other)
    with pytest.raises(NotKnown):
        await verify_proof(node, other)


def test_a_swept_subject_is_complete_at_its_end() -> None:
    assert Swept("jobs", 1, 0, 0).is_complete
    assert not Swept("jobs", 1, 0, 7).is_complete
