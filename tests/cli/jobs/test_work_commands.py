"""`vox-mesh job take`, `renew`, `report` and `run-next`: an agent works with commands."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.cli.conftest import VoxCommand
from tests.cli.jobs.test_job import kind


def state_of(vox: VoxCommand, job: str) -> str:
    """Where a job stands."""
    state: str = vox("job", "show", job, "--json").document["state"]
    return state


def test_an_agent_takes_renews_and_reports_with_commands(vox: VoxCommand, tmp_path: Path) -> None:
    job = kind(vox, "test.a")
    assert vox("job", "take", "other", "--agent", "coder").code == 1
    missing = vox("job", "take")
    assert (missing.code, "VOX_AGENT_ID" in missing.error) == (2, True)
    (taken,) = vox("job", "take", "test.*", "--agent", "coder", "--lease", "30s", "--json").document
    assert (taken["job_id"], taken["agent"], taken["lease_ms"]) == (job, "coder", 30_000)
    kind(vox, "test.b")
    assert vox("job", "take", "test.*", "--agent", "coder", "--capacity", "1").code == 1
    token = ("--token", str(taken["claim_token"]))
    renewed = vox("job", "renew", job, *token, "--lease", "1m", "--json").document
    assert renewed["lease_ms"] == 60_000
    (tmp_path / "notes").write_text("kept")
    assert vox("job", "report", job, "failed", *token).code == 2  # without a reason
    unpriced = vox("job", "report", job, "succeeded", *token, "--input-tokens", "9")
    assert (unpriced.code, "need --model" in unpriced.error) == (2, True)
    kept = ("--artifact", f"notes={tmp_path}/notes")
    reported = vox("job", "report", job, "succeeded", *token, "--result", "1", *kept)
    assert (reported.code, state_of(vox, job)) == (0, "succeeded")
    assert vox("job", "result", job).out == "1\n"
    outputs = vox("job", "show", job, "--json").document["output_artifacts"]
    assert [each["name"] for each in outputs] == ["notes", "result"]
    assert vox("job", "verify", job).code == 0
    late = vox("job", "report", job, "failed", *token, "--reason", "too late")
    assert (late.code, "stale_claim" in late.error) == (1, True)
    assert vox("job", "renew", job, *token).code == 1


def test_run_next_reports_by_exit_code_and_gives_the_payload(vox: VoxCommand) -> None:
    good = kind(vox, "test.good", "--payload", "[2]")
    script = 'cat > "$VOX_JOB_RESULT"; test "$VOX_AGENT_ID $VOX_JOB_KIND" = "coder test.good"'
    ran = vox("job", "run-next", "test.good", "--agent", "coder", "--", "sh", "-c", script)
    assert (ran.code, state_of(vox, good)) == (0, "succeeded")
    assert vox("job", "result", good, "--json").document["result"] == [2]
    tagged = kind(vox, "test.tagged", "--tag", "gpu", "--tag", "arm")
    run_next = ("job", "run-next", "test.tagged", "--agent", "coder", "--wait", "0s", "--tag", "gpu")
    assert vox("job", "take", "--agent", "coder", "--tag", "arm").code == 1
    assert [vox(*run_next, *more, "--", "true").code for more in ((), ("--tag", "arm"))] == [1, 0]
    assert state_of(vox, tagged) == "succeeded"
    bad = kind(vox, "test.bad", "--max-attempts", "1")
    assert vox("job", "run-next", "test.bad", "--agent", "coder", "--", "sh", "-c", "exit 7").code == 7
    shown = vox("job", "show", bad, "--json").document
    assert (shown["state"], shown["exit_code"], shown["reason"]) == ("failed", 7, "exit code 7")
    none = vox("job", "run-next", "test.none", "--agent", "coder", "--wait", "0s", "--", "true")
    assert (none.code, "no job to take" in none.err) == (1, True)
    unread = kind(vox, "test.unread", "--max-attempts", "1")
    ran = vox(
        "job", "run-next", "test.unread", "--agent", "coder", "--", "sh", "-c", "echo x > $VOX_JOB_RESULT"
    )
    assert (ran.code, state_of(vox, unread), "result can't be read" in ran.err) == (1, "failed", True)
    lost = kind(vox, "test.lost")
    assert vox("job", "run-next", "test.lost", "--agent", "coder", "--", "/no/such/command").code == 127
    assert state_of(vox, lost) == "pending"


def test_run_next_keeps_the_credentials_of_the_mesh_from_the_command(vox: VoxCommand, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token-for-metrics-only")
    job = kind(vox, "test.env")
    script = """printenv | cut -d = -f 1 | grep -E 'TOKEN|CREDENTIALS|OWN' | sort | tr '\\n' ' ' > names
        echo "\\"$(cat names)\\"" > "$VOX_JOB_RESULT" """
    given = vox.having(
        VOX_MESH_METRICS_TOKEN_FILE=f"{tmp_path}/token",
        VOX_MESH_READ_TOKEN="a-token-that-only-reads",
        CREDENTIALS_DIRECTORY=str(tmp_path),
        OWN="1",
    )
    assert given("job", "run-next", "test.env", "--agent", "coder", "--", "sh", "-c", script).code == 0
    assert vox("job", "result", job, "--json").document["result"] == "OWN VOX_JOB_CLAIM_TOKEN "


def test_a_signal_ends_the_command_and_the_job_goes_back(vox: VoxCommand) -> None:
    job = kind(vox, "test.slow")
    stop = "kill -TERM $PPID; sleep 60"
    ended = vox("job", "run-next", "test.slow", "--agent", "coder", "--", "sh", "-c", stop)
    assert ended.code == 128 + signal.SIGTERM
    shown = vox("job", "show", job, "--json").document
    assert (shown["state"], shown["reason"]) == ("pending", "stopped by SIGTERM")


def test_a_question_is_asked_and_answered_with_commands(vox: VoxCommand) -> None:
    job = kind(vox, "test.ask")
    (taken,) = vox("job", "take", "--agent", "coder", "--json").document
    token = ("--token", str(taken["claim_token"]))
    assert vox("job", "ask", job, "Which?", "--choice", "a", "--choice", "b", *token).code == 0
    (listed,) = vox("job", "questions", "--json").document
    assert (listed["job_id"], listed["choices"], listed["asked_by"]) == (job, ["a", "b"], "coder")
    assert vox("job", "answer", job, "c").code == 2
    assert "a, b" in vox("job", "questions").out
    assert vox("job", "answer", job, "b", "--agent", "lead", "--json").document["answered_by"] == "lead"
    assert vox("job", "answer", job, "a").code == 1
    assert vox("job", "answer", job, "b").out.splitlines()[-1].endswith("a, b")  # the same one again
    (taken,) = vox("job", "take", "--agent", "coder", "--wait", "10s", "--json").document
    assert taken["answer"] == "b"
