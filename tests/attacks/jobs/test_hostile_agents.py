"""A coding agent that does what it was not asked to: nothing outside of its folder, and not for longer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.jobs.agent_jobs import AgentDesk, Pids, Steps, artifact, is_alive, make_repository
from tests.support.jobs.job_desks import idle
from tests.support.jobs.jobs_in_hand import lapse
from vox_mesh.node import MeshNode


@pytest.fixture
def desk(owner: MeshNode, tmp_path: Path) -> AgentDesk:
    """One node, on a file and on a server; a test configures its agent."""
    return AgentDesk(owner, tmp_path)


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Pids]:
    """Where an agent reports its processes."""
    found = Pids(tmp_path)
    yield found
    found.close()


async def test_an_agent_reaches_no_file_outside_of_its_folder_through_its_worker(
    desk: AgentDesk, tmp_path: Path
) -> None:
    desk.configure()
    outside = tmp_path / "outside"
    steps: Steps = [
        {"link": {"out": str(tmp_path)}},
        {"write": {str(outside): "x"}},
        {"write": {"../../../outside": "x"}},
        {"write": {"out/outside": "x"}},
        {"read": "/etc/hostname"},
        {"terminal": "id"},
    ]
    job = await desk.run(steps)
    message = (await desk.result(job))["message"]
    assert message.count("refused: ") == 5
    assert "done" not in message
    assert not outside.exists()


async def test_an_agent_does_not_outlive_its_claim(desk: AgentDesk, pids: Pids) -> None:
    desk.configure()
    job_id = await desk.schedule([{"ignore": 0}, {"child": str(pids.path)}, {"hang": 0}])
    async with desk.mesh.worker.running():
        running = await pids.read()
        await lapse(desk.mesh, job_id)
        await desk.mesh.jobs.abort(job_id)
        await idle(desk.mesh)
        assert not any(map(is_alive, running))
    assert (await desk.mesh.jobs.find(job_id)).output_artifacts == "[]"
    assert desk.folders == []


async def test_no_setting_of_a_worktree_runs_a_program_of_an_agent(desk: AgentDesk, tmp_path: Path) -> None:
    repository, ran = make_repository(tmp_path), tmp_path / "ran"
    command = (
        f"git config filter.evil.clean 'touch {ran}; cat'; git config filter.evil.smudge 'touch {ran}; cat'; "
        f"git config core.fsmonitor 'touch {ran}; false'; git config diff.external 'touch {ran}'; "
        f"mkdir -p $(git rev-parse --git-common-dir)/hooks; cd $(git rev-parse --git-common-dir)/hooks; "
        f"for each in post-checkout pre-commit post-index-change; do "
        f"printf '#!/bin/sh\\ntouch {ran}\\n' > $each; chmod +x $each; done; "
        f"cd -; printf '* filter=evil diff=evil\\n' > .gitattributes; echo new > file"
    )
    desk.configure(mode="command", command=["/bin/sh", "-c", command], repositories=[str(repository)])
    for _ in range(2):  # the second finds what the first has left in the repository
        job = await desk.run([], repository=str(repository))
        assert (await desk.result(job))["changed"] == ["A .gitattributes", "A file"]
    assert not ran.exists()


async def test_an_agent_that_replaces_its_folder_has_no_files_of_others_kept(
    desk: AgentDesk, tmp_path: Path
) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "key").write_text("the key of the node\n")
    command = f"cd ..; mv work moved; ln -s {secrets} work"
    desk.configure(mode="command", command=["/bin/sh", "-c", command])
    job = await desk.run([])
    result = await desk.result(job)
    assert (result["changed"], result["diff"]) == ([], None)
    assert "changes.diff" not in job.output_artifacts
    assert (secrets / "key").exists()
    assert desk.folders == []


async def test_a_job_chooses_neither_the_command_nor_the_variables_of_an_agent(
    desk: AgentDesk, tmp_path: Path
) -> None:
    desk.configure(mode="command", command=["/bin/cat"])
    for more in (
        {"command": ["touch", str(tmp_path / "ran")]},
        {"env": {"LD_PRELOAD": "x"}},
        {"mode": "acp"},
    ):
        job = await desk.run([], **more)
        assert job.state == "failed"
        assert "the payload has no field" in (job.reason or "")
    assert not (tmp_path / "ran").exists()


async def test_an_agent_finds_no_token_of_its_worker_and_leaves_none_of_its_own(
    desk: AgentDesk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOX_DB_TOKEN", "token-of-the-worker")
    token = tmp_path / "coder.token"
    token.write_text("token-of-the-agent")
    access = {"agent_id": "coder", "token_file": str(token), "node": "http://127.0.0.1:7400"}
    desk.configure(mesh=access)
    steps: Steps = [{"env": ["VOX_DB_TOKEN", "VOX_MESH_TOKEN", "VOX_AGENT_TOKEN"]}]
    job = await desk.run(steps)
    result = await desk.result(job)
    assert result["message"] == '{"VOX_DB_TOKEN": null, "VOX_MESH_TOKEN": null, "VOX_AGENT_TOKEN": null}'
    assert b"token-of" not in await artifact(desk.mesh, job, "transcript.jsonl")
