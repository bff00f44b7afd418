"""Jobs in git: what plain git shows of them, and what comes back from a repository."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from tests.nodes.test_features import another
from tests.support.jobs.job_desks import ControlledHandler, ended, scheduled
from tests.support.running.lengths import SOAK
from tests.support.running.repositories import Repository, new_repository
from tests.support.running.schemas import assert_fits, is_valid
from tools.homes import FILE
from vox_mesh import JobContext, Mesh, Script, Statement
from vox_mesh.jobs.git.exporter import ExportReport
from vox_mesh.jobs.git.importer import ImportReport
from vox_mesh.jobs.git.repository import GitRepository, RefUpdate
from vox_mesh.jobs.results import read_result
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.node import MeshNode
from vox_mesh.oplog.writer import AGENTS_NAMED
from vox_mesh.views.jobs import verify_proof

_JOBS: Final = 1_000 if SOAK else 200
_AT_ONCE: Final = 200
_PACKED: Final = 25
"""The number of jobs whose refs are packed: more than 64."""

_ALL: Final = "refs/gatos/*:refs/gatos/*"
NAMES: Final = "refs/gatos/jobs/"


@asynccontextmanager
async def mesh(
    folder: Path, scope: str, name: str = "worker", tempo_policy: Path | None = None
) -> AsyncIterator[MeshNode]:
    """A node of a mesh. In every mesh in which it takes part it has the same key."""
    given = {"scope_id": scope, "node_id": name, "tick": "1h", "tempo_policy": tempo_policy}
    settings = FILE.settings(folder, None, **given)
    async with Mesh.open(settings) as node:

        @node.worker.handles("double")
        async def double(context: JobContext) -> Any:
            return {"doubled": context.payload * 2}

        await node.run_once()
        yield node


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[MeshNode]:
    """A node of one mesh."""
    async with mesh(tmp_path, "first") as node:
        yield node


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """An empty repository."""
    return new_repository(tmp_path / "repository")


async def exported(node: Mesh, repository: Repository) -> ExportReport:
    """Export all jobs."""
    return await node.job_exporter(await GitRepository.open(repository.folder)).run()


async def imported(node: Mesh, repository: Repository) -> ImportReport:
    """Import all jobs."""
    return await node.job_importer(await GitRepository.open(repository.folder)).run()


def refs(repository: Repository) -> dict[str, str]:
    """All refs, and the commits that they name."""
    lines = repository.git("for-each-ref", "--format=%(refname) %(objectname)").splitlines()
    return dict(line.split(" ") for line in lines)


async def done(node: MeshNode, count: int) -> list[str]:
    """Ids of jobs that were run."""
    sizes = (min(_AT_ONCE, count - begun) for begun in range(0, count, _AT_ONCE))
    jobs = [job for size in sizes for job in await scheduled(node, size, "double")]
    await node.worker.start()
    return [job.job_id for job in await ended(node, *jobs)]


async def test_plain_git_shows_a_job_its_claim_and_its_proof(node: MeshNode, repository: Repository) -> None:
    (job_id,) = await done(node, 1)
    proof = await verify_proof(node, job_id)
    report = await exported(node, repository)
    worker = node.identity.key.public.replace(":", "-")
    names = [f"{NAMES}{job_id}/{each}" for each in (f"claims/{worker}", "manifest", "result")]
    assert ([*refs(repository)], report.created) == (names, 3)
    shown = repository.git("log", "-1", "--format=%(trailers:unfold)", names[2]).strip().splitlines()
    assert shown == [f"{name}: {value}" for name, value in (proof.trailers or {}).items()]
    assert repository.git("rev-parse", f"{names[2]}^").strip() == refs(repository)[names[1]]
    assert json.loads(repository.git("show", f"{names[2]}:artifacts/result")) == {"doubled": 0}
    manifest = json.loads(repository.git("show", f"{names[1]}:job.yaml"))
    assert Manifest.of(**manifest).content_id == job_id
    assert "error" not in repository.tried("fsck", "--full", "--strict").stderr


async def test_a_proof_has_the_bar_and_beat_of_its_end_once_a_tempo_was_announced(
    tmp_path: Path, repository: Repository
) -> None:
    tempo = tmp_path / "tempo.yaml"
    tempo.write_text("{cluster_id: east, initial_bpm: 60, bar_len_beats: 4}")
    async with mesh(tmp_path, "first", tempo_policy=tempo) as node:
        (before,) = await done(node, 1)
        await node.rhythm.policies.settle()  # as the leader does
        (second,) = await ended(node, *await scheduled(node, 1, "double"))
        after = second.job_id
        await exported(node, repository)
        for job_id in (before, after):
            assert (await verify_proof(node, job_id)).faults == []
        plan = node.rhythm.context.plan
    read = (repository.git("show", f"{NAMES}{each}/result:proof.json") for each in (before, after))
    unstamped, stamped = (json.loads(text)["envelope"] for text in read)
    assert stamped.keys() - unstamped.keys() == {"window", "beat_index"}
    finished_ms = round(datetime.fromisoformat(stamped["finished_at"]).timestamp() * 1_000)
    assert (stamped["window"], stamped["beat_index"]) == plan.stamp_at(finished_ms)
    assert_fits("proof_of_execution_envelope", stamped)
    assert not is_valid("proof_of_execution_envelope", {**unstamped, "window": stamped["window"]})
    found = repository.git("log", "--all", "--format=%s", f"--grep=^Window: {stamped['window']}$")
    assert found == f"Result of job {after[:12]}: succeeded\n"


async def test_a_proof_has_no_bar_while_a_node_lives_that_would_refuse_it(
    tmp_path: Path, repository: Repository
) -> None:
    tempo = tmp_path / "tempo.yaml"
    tempo.write_text("{cluster_id: east, initial_bpm: 60, bar_len_beats: 4}")
    async with mesh(tmp_path, "first", tempo_policy=tempo) as first:
        await first.rhythm.policies.settle()
        await another(first, "older", AGENTS_NAMED - 1)
        async with mesh(tmp_path, "first", "second", tempo) as second:
            assert second.rhythm.context.entry.is_announced
            (job_id,) = await done(second, 1)
            await exported(second, repository)
    assert (
        "window" not in json.loads(repository.git("show", f"{NAMES}{job_id}/result:proof.json"))["envelope"]
    )


@pytest.mark.soak
async def test_jobs_that_are_exported_twice_have_the_same_refs(
    node: MeshNode, repository: Repository, tmp_path: Path
) -> None:
    other = new_repository(tmp_path / "other")
    ids = await done(node, _JOBS)
    first, again = await exported(node, repository), await exported(node, repository)
    elsewhere = await exported(node, other)
    assert (first.created, again.created, elsewhere.created) == (3 * len(ids), 0, 3 * len(ids))
    assert refs(repository) == refs(other)
    assert first.refused == []
    fsck = repository.tried("fsck", "--full", "--strict")
    assert (fsck.returncode, fsck.stdout) == (0, "")


async def test_a_claim_is_there_while_it_is_held(node: MeshNode, repository: Repository) -> None:
    handler = ControlledHandler(node)
    (job,) = await scheduled(node, 1)
    await node.worker.start()
    await handler.begun.get()
    await exported(node, repository)
    claim = f"{NAMES}{job.job_id}/claims/{node.identity.key.public.replace(':', '-')}"
    assert {claim, f"{NAMES}{job.job_id}/manifest"} == {*refs(repository)}
    held = refs(repository)[claim]
    await node.job_kinds.pause("work")
    await node.jobs.yield_job(job)
    report = await exported(node, repository)
    assert (report.deleted, [*refs(repository)]) == (1, [f"{NAMES}{job.job_id}/manifest"])
    # That of another mesh's worker is not ours to delete.
    stranger = f"{NAMES}{job.job_id}/claims/ed25519-{'3b' * 32}"
    repository.git("update-ref", stranger, held)
    assert (await exported(node, repository)).deleted == 0
    assert stranger in refs(repository)


async def test_a_round_trip_through_a_bare_repository_loses_nothing(
    node: MeshNode, repository: Repository, tmp_path: Path
) -> None:
    ran, *others = await done(node, _PACKED)
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    await node.job_kinds.pause("double")
    waiting = await node.jobs.schedule(
        "double",
        3,
        priority=3,
        run_at=later,
        max_attempts=7,
        max_interruptions=0,
        backoff="1500ms",
        lease="90s",
    )
    next_one = await node.jobs.schedule("other.kind", {"a": [1]}, after=[waiting])
    after_ran = await node.jobs.schedule("other.kind", after=[ran], lease="bar")
    aborted = await node.jobs.schedule("other.kind")
    await node.jobs.abort(aborted)
    await exported(node, repository)
    assert f"{NAMES}{aborted.job_id}/end" in refs(repository)
    assert not (repository.folder / ".git" / "refs" / "gatos").exists(), "they are packed"

    bare, clone = new_repository(tmp_path / "bare"), new_repository(tmp_path / "clone")
    bare.git("config", "core.bare", "true")
    for each in (bare, clone):
        each.git("config", "core.fsync", "none")
    repository.git("push", "--quiet", str(bare.folder), _ALL)
    clone.git("fetch", "--quiet", str(bare.folder), _ALL)
    assert refs(clone) == refs(repository)

    before = {job.job_id: job for job in await node.jobs.queries.listed()}
    await node.close()
    async with mesh(tmp_path, "second") as second:
        report = await imported(second, clone)
        assert ({*report.completed}, report.skipped, report.refused) == ({ran, *others}, 1, [])
        assert {*report.scheduled} == {waiting.job_id, next_one.job_id, after_ran.job_id}
        verified = await verify_proof(second, ran)
        assert (verified.faults, verified.valid) == ([], True)
        assert await read_result(await second.jobs.find(ran), second.artifacts.body) == {"doubled": 0}
        after = {job.job_id: job for job in await second.jobs.queries.listed()}
        for job_id in report.scheduled:
            kept = ("job_id", "ulid", "kind", "priority", "max_attempts", "max_interruptions", "backoff_ms")
            for name in (*kept, "lease_ms", "manifest"):
                assert getattr(after[job_id], name) == getattr(before[job_id], name), name
        assert after[waiting.job_id].not_before_ms == round(later.timestamp() * 1_000)
        again = await imported(second, clone)
        assert (again.scheduled, again.completed, again.refused) == ([], [], [])
        assert again.unchanged == 3 + _PACKED
        assert (await exported(second, clone)).created == 0
        rebuilt = await second.jobs.find(ran)
        assert rebuilt.claimer == second.identity.node_id


async def test_concurrent_writers_lose_no_ref(node: MeshNode, repository: Repository) -> None:
    ids = await done(node, _PACKED)
    target = await GitRepository.open(repository.folder)
    commit = repository.git("commit-tree", repository.git("write-tree").strip(), "-m", "x").strip()
    others = [f"{NAMES}{number:064x}/manifest" for number in range(20)]
    reports = await asyncio.gather(
        *(exported(node, repository) for _ in range(3)),
        *(target.update_refs([RefUpdate(name, new=commit)]) for name in others),
    )
    assert sum(each.created for each in reports[:3] if each is not None) == 3 * len(ids)
    found = refs(repository)
    assert {*others} <= {*found}
    assert len(found) == 3 * len(ids) + len(others)


async def test_a_planted_row_does_not_become_a_job_elsewhere(node: MeshNode, repository: Repository) -> None:
    (changed,) = await done(node, 1)
    genuine, planted, unreadable = await scheduled(node, 3, "later")
    for change, job_id in (
        ("seed = 'x'", planted.job_id),
        ("manifest = replace(manifest, 'double', 'triple')", changed),
        ("manifest = '{'", unreadable.job_id),
    ):
        await node.store.write(Script(Statement(f"UPDATE jobs SET {change} WHERE job_id = ?1", (job_id,))))
    node.jobs.authorship.forget()
    report = await exported(node, repository)
    assert dict(report.refused) == {
        planted.job_id: "no op signed by its author schedules it",
        changed: "its manifest is that of another job",
        unreadable.job_id: "its manifest is that of another job",
    }
    assert [*refs(repository)] == [f"{NAMES}{genuine.job_id}/manifest"]
