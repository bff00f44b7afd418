"""Hostile git repositories: what can't be verified is refused by name, and nothing of theirs is run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.jobs.git.test_git_jobs import NAMES, done, exported, imported, mesh, node, refs, repository
from tests.support.jobs.job_desks import ended, scheduled
from tests.support.jobs.staging import held, schedule, start
from tests.support.running.repositories import Repository
from vox_mesh import JobState, Script, Statement
from vox_mesh.model.base.json_text import MAX_STORED_DEPTH
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.node import MeshNode

__all__ = ["node", "repository"]

_DEEP: Final = json.loads("[" * MAX_STORED_DEPTH + "0" + "]" * MAX_STORED_DEPTH)


def _edit(repository: Repository, ref: str, path: str, change: Callable[[str], str]) -> None:
    """Put another content into a file of the commit that a ref names, with the same message."""
    content = change(repository.git("show", f"{ref}:{path}"))
    repository.write("edited", text=content)
    blob = repository.git("hash-object", "-w", "edited").strip()
    repository.git("read-tree", ref)
    repository.git("update-index", "--add", "--cacheinfo", f"100644,{blob},{path}")
    message = repository.git("log", "-1", "--format=%B", ref)
    tree = repository.git("write-tree").strip()
    commit = repository.git("commit-tree", tree, "-p", f"{ref}^{{commit}}", "-m", message).strip()
    repository.git("update-ref", ref, commit)


async def test_what_a_repository_can_t_prove_is_refused_by_name(
    node: MeshNode, repository: Repository, tmp_path: Path
) -> None:
    good, changed, other_output, no_trailer = await done(node, 4)
    (pending,) = await scheduled(node, 1, "later")
    (genuine,) = await scheduled(node, 1, "later")
    await exported(node, repository)
    await node.close()
    name = f"{NAMES}{{}}/{{}}".format
    _edit(repository, name(changed, "result"), "proof.json", lambda text: text.replace("succeeded", "failed"))
    _edit(repository, name(other_output, "result"), "artifacts/result", lambda text: text.replace("4", "5"))
    _edit(repository, name(pending.job_id, "manifest"), "job.yaml", lambda text: text.replace("later", "now"))
    bare_commit = repository.git("commit-tree", f"{name(no_trailer, 'result')}^{{tree}}", "-m", "x").strip()
    repository.git("update-ref", name(no_trailer, "result"), bare_commit)
    repository.git("update-ref", f"{NAMES}no-job/manifest", bare_commit)

    async with mesh(tmp_path, "second") as second:
        report = await imported(second, repository)
        refused = dict(report.refused)
        assert (report.completed, report.scheduled) == ([good], [genuine.job_id])
        assert {*refused} == {
            name(changed, "result"),
            name(other_output, "result"),
            name(no_trailer, "result"),
            name(pending.job_id, "manifest"),
            f"{NAMES}no-job/manifest",
        }
        assert "the signature is not the worker's" in refused[name(changed, "result")]
        assert "the content of result is not what the proof says" in refused[name(other_output, "result")]
        assert "the trailer Job-Id is missing" in refused[name(no_trailer, "result")]
        assert "its manifest is that of job" in refused[name(pending.job_id, "manifest")]
        # The jobs of the refused results seem to have been run, so they are not scheduled.
        assert {*await second.jobs.queries.standing([changed, other_output, no_trailer])} == set()


async def test_a_result_of_an_unknown_worker_is_refused(
    node: MeshNode, repository: Repository, tmp_path: Path
) -> None:
    (job_id,) = await done(node, 1)
    await exported(node, repository)
    for name, reason in (
        ("stranger", "the worker 'worker' is not known to this mesh"),
        ("worker", "which is not the key of the worker 'worker'"),
    ):
        async with mesh(tmp_path / name, "second", name) as second:
            report = await imported(second, repository)
            ((ref, why),) = report.refused
            assert (ref, reason in why) == (f"{NAMES}{job_id}/result", True), why
            assert (report.completed, report.scheduled) == ([], [])


async def test_a_job_that_has_another_end_here_keeps_it(
    node: MeshNode, repository: Repository, tmp_path: Path
) -> None:
    await node.worker.start()
    (job,) = await node.jobs.schedule_all([Manifest.of(kind="double", payload=2)], new=False)
    await ended(node, job)
    await exported(node, repository)
    await node.close()
    async with mesh(tmp_path, "second") as second:
        (own,) = await second.jobs.schedule_all([Manifest.of(kind="double", payload=2)], new=False)
        await second.jobs.abort(own)
        ((ref, why),) = (await imported(second, repository)).refused
        assert (ref, why) == (f"{NAMES}{job.job_id}/result", "it is aborted here, otherwise")


async def test_a_planted_time_keeps_no_other_job_from_being_exported(
    node: MeshNode, repository: Repository
) -> None:
    (good,) = await done(node, 1)
    changes = ("ended_ms = 'x'", "ended_ms = -1", "lease_ms = 'x'", "created_ms = 9007199254740991")
    bad = await scheduled(node, len(changes), "later")
    await node.jobs.abort(*bad)
    for job, change in zip(bad, changes, strict=True):
        values = (*node.store.mesh_id, job.job_id)
        sql = f"UPDATE jobs SET {change} WHERE scope_id = ? AND repository_id = ? AND job_id = ?"
        await node.store.write(Script(Statement(sql, values)))
    report = await exported(node, repository)
    assert {each.name for each in report.refused} == {job.job_id for job in bad}
    assert repository.git("show-ref", f"{NAMES}{good}/result")


async def test_a_hostile_repository_runs_nothing(
    node: MeshNode, repository: Repository, tmp_path: Path
) -> None:
    await done(node, 1)
    mark = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    hooks = repository.folder / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    (hooks / "reference-transaction").symlink_to(program)
    for name in ("core.fsmonitor", "core.sshCommand", "core.alternateRefsCommand", "core.pager"):
        repository.git("config", name, str(program))
    repository.git("config", "extensions.partialClone", "origin")
    repository.git("config", "core.repositoryFormatVersion", "1")
    repository.git("config", "remote.origin.url", f"ext::{program}")
    repository.git("config", "protocol.ext.allow", "always")
    mark.unlink(missing_ok=True)
    await exported(node, repository)
    missing = f"{NAMES}{'0' * 64}/manifest"
    (repository.folder / ".git" / missing).parent.mkdir(parents=True)
    (repository.folder / ".git" / missing).write_text("1" * 40 + "\n")
    report = await imported(node, repository)
    assert dict(report.refused) == {missing: "there is no job.yaml in it"}
    assert not mark.exists()


@pytest.mark.parametrize("field", ["worker", "proof", "jobs"])
async def test_a_completion_that_can_t_be_read_keeps_no_other_job_from_the_repository(
    node: MeshNode, repository: Repository, field: str
) -> None:
    (good,) = await done(node, 1)
    bad = await schedule(node)
    await start(node, bad)
    item = held(bad, 1, state=JobState.SUCCEEDED)
    script = node.jobs.transitions.complete(
        [item],
        logged=[{"proof": _DEEP}] if field == "proof" else None,
        worker={"runner": _DEEP} if field == "worker" else None,
    )
    await node.store.write(script)
    if field == "jobs":  # an item that is not an object, planted by a program with a shell
        more = "json_insert(payload, '$.jobs[#]', 'text')"
        planted = Statement(f"UPDATE agent_oplog SET payload = {more} WHERE kind = 'CompleteJob'")
        await node.store.write(Script(planted))
    report = await exported(node, repository)
    assert report.created > 0
    assert f"{NAMES}{good}/result" in refs(repository)
    assert f"{NAMES}{bad}/result" not in refs(repository)
