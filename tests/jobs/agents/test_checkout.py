"""Worktrees of agents: of an allowed repository, removed at the end, compared without its settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.jobs.agent_jobs import AgentDesk, Steps, artifact, git


async def test_a_job_gets_a_worktree_and_its_changes_apply(desk: AgentDesk, repository: Path) -> None:
    desk.configure(repositories=[str(repository)])
    steps: Steps = [
        {"read": "README"},
        {"make": {"README": "changed\n", "new": "x\n", "ignored": "x\n"}},
        {"say": "end"},
    ]
    job = await desk.run(steps, repository=str(repository), ref="main")
    result = await desk.result(job)
    assert result["message"] == "done: hello\n; end"
    assert result["changed"] == ["M README", "A new"]
    assert git(repository, "worktree", "list").count("\n") == 1
    assert desk.folders == []
    diff = repository / "changes.diff"
    diff.write_bytes(await artifact(desk.mesh, job, "changes.diff"))
    git(repository, "apply", "changes.diff")
    assert (repository / "README").read_text() == "changed\n"


async def test_what_an_agent_commits_in_its_worktree_is_part_of_the_diff(
    desk: AgentDesk, repository: Path
) -> None:
    command = (
        "echo y > made; git add made; git -c user.name=a -c user.email=a@a commit -qm made; git status -s"
    )
    desk.configure(mode="command", command=["/bin/sh", "-c", command], repositories=[str(repository)])
    job = await desk.run([], repository=str(repository))
    assert (await desk.result(job))["changed"] == ["A made"]
    assert (await desk.result(job))["message"] == ""
    assert git(repository, "log", "--oneline").count("\n") == 1


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"repository": "/etc"}, "is not allowed for this agent"),
        ({"repository": "$repository/../repository"}, "is not allowed for this agent"),
        ({"repository": "$repository", "ref": "no-such"}, "can't be checked out"),
        ({"repository": "$repository", "ref": "--upload-pack=x"}, "ref must be a branch"),
        ({"files": {"../out": "x"}}, "a path must stay in its folder"),
        ({"files": {"/etc/out": "x"}}, "a path must be relative"),
        ({"files": {".git/hooks/x": "x"}}, "outside of .git"),
        ({"command": ["id"]}, "the payload has no field 'command'"),
    ],
)
async def test_what_a_job_may_not_ask_for_ends_it_at_once(
    desk: AgentDesk, repository: Path, payload: dict[str, object], reason: str
) -> None:
    desk.configure(repositories=[str(repository)])
    given = {
        name: value.replace("$repository", str(repository)) if isinstance(value, str) else value
        for name, value in payload.items()
    }
    job = await desk.run([], max_attempts=3, **given)
    assert (job.state, job.attempts) == ("failed", 1)
    assert reason in (job.reason or "")
    assert desk.folders == []


async def test_a_folder_may_be_kept(desk: AgentDesk) -> None:
    desk.configure(keep=True)
    await desk.run([{"make": {"made": "x\n"}}])
    (name,) = desk.folders
    assert (desk.base / name / "work" / "made").read_text() == "x\n"
