"""`vox-mesh job`: what is scheduled, found, listed, shown and waited for."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.conftest import VoxCommand, assert_wrong_usage
from tests.cli.database.test_oplog import database
from tests.support.jobs.job_scene import done, taken
from tools.fork_server import Program
from tools.forked import Process
from tools.sqld import Server, free_port
from vox_mesh.cli import app
from vox_mesh.model.base.canonical import content_id
from vox_mesh.store.script import new_key

_PATIENCE_S: Final = 60.0


def scheduled(vox: VoxCommand, *arguments: str) -> Any:
    """Schedule a job; what the command shows of it."""
    return vox("job", "schedule", "--json", *arguments).document


def kind(vox: VoxCommand, name: str = "test.work", *more: str) -> str:
    """Schedule a new job of a kind; its id."""
    return str(scheduled(vox, "--kind", name, *more)["job_id"])


def listed(vox: VoxCommand, *arguments: str) -> list[str]:
    """The ids of the jobs that a command lists."""
    return [each["job_id"] for each in vox("job", *arguments, "--json").document]


# --- scheduling ----------------------------------------------------------------------------------


def test_a_job_is_new_each_time(vox: VoxCommand) -> None:
    asked = ("--kind", "test.work", "--payload", '{"n": 1}')
    jobs = [scheduled(vox, *asked) for _ in range(3)]
    assert [{*each} for each in jobs] == 3 * [{"job_id", "ulid", "kind", "is_new", "spooled"}]
    assert [each["is_new"] for each in jobs] == 3 * [True]
    assert len({each["job_id"] for each in jobs}) == 3


def test_a_job_is_scheduled_by_the_given_agent(vox: VoxCommand) -> None:
    job_id = kind(vox, "test.work", "--agent", "ann")
    (entry,) = vox("oplog", "tail", "--job", job_id, "--json").document
    assert entry["agent"] == "ann"


def test_once_schedules_a_job_once_and_says_so(vox: VoxCommand) -> None:
    asked = ("--once", "--kind", "test.work", "--payload", '{"n": 1}')
    first = scheduled(vox, *asked)
    job_id = first["job_id"]
    assert (job_id, first["is_new"]) == (content_id({"kind": "test.work", "payload": {"n": 1}}), True)
    again = vox("job", "schedule", *asked, "--json")
    assert (again.code, again.document) == (4, first | {"is_new": False})
    assert re.fullmatch(
        rf"vox-mesh: already pending, scheduled \d+ s ago \(job {job_id[:12]}\), not scheduled again\n",
        again.err,
    )
    done(job_id)
    for more in ((), ("--wait",)):
        ended = vox("job", "schedule", *asked, *more)
        line = rf"vox-mesh: already succeeded \d+ s ago \(job {job_id[:12]}\), not run again\n"
        assert (ended.code, bool(re.fullmatch(line, ended.err))) == (4, True)
    assert vox("job", "schedule", *asked).out == f"found job {job_id[:12]} (test.work)\n"
    heading, line = vox("job", "schedule", "-v", *asked).out.splitlines()
    assert heading.split() == ["job_id", "ulid", "kind", "is_new", "spooled"]
    assert line.split() == [job_id[:12], first["ulid"], "test.work", "no", "no"]
    failed = scheduled(vox, "--once", "--kind", "test.fail")["job_id"]
    done(failed)
    ended = vox("job", "schedule", "--once", "--wait", "--kind", "test.fail")
    assert (ended.code, "already failed" in ended.err) == (1, True)


def test_a_ulid_belongs_to_one_job(vox: VoxCommand) -> None:
    asked = ("--ulid", new_key(), "--", "/bin/true")
    assert [scheduled(vox, "--once", *asked)["is_new"] for _ in range(2)] == [True, False]
    taken_by_another = vox("job", "schedule", *asked)
    assert (taken_by_another.code, "the ULID is taken by another job" in taken_by_another.error) == (2, True)


def test_a_command_runs_in_the_folder_of_its_scheduler_once_and_finds_its_programs(vox: VoxCommand) -> None:
    tools = vox.folder / "tools"
    tools.mkdir()
    (tools / "mytool").write_text("#!/bin/sh\npwd -P; exit 3\n")
    (tools / "mytool").chmod(0o755)
    here = scheduled(vox, "--", "mytool")["job_id"]
    empty = scheduled(vox, "--isolated", "--retries", "1", "--backoff", "0s", "--", "mytool")["job_id"]
    shown = [vox("job", "show", each, "--json").document for each in (here, empty)]
    assert [each["manifest"].get("cwd") for each in shown] == [str(vox.folder), None]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f".:{tools}:{os.environ['PATH']}")
        done(here, empty)
    shown = [vox("job", "show", each, "--json").document for each in (here, empty)]
    assert [(each["exit_code"], each["failures"]) for each in shown] == [(3, 1), (3, 2)]
    folders = [vox("job", "logs", each).out.split() for each in (here, empty)]
    assert folders[0] == [str(vox.folder.resolve())]
    assert [Path(each).name.startswith("vox-job-") for each in folders[1]] == [True, True]


def test_a_command_fails_by_name_where_its_folder_is_missing(vox: VoxCommand) -> None:
    job = scheduled(vox, "--cwd", "/no/such/folder", "--", "true")["job_id"]
    done(job)
    reason = vox("job", "show", job, "--json").document["reason"]
    assert "cwd: '/no/such/folder' does not exist on this node" in reason


def test_a_command_is_scheduled_with_all_that_its_options_say(vox: VoxCommand) -> None:
    before = kind(vox)
    op_id, ulid = new_key(), new_key()
    options = ("--env", "A=b=c", "--env", "EMPTY=", "--cwd", "/", "--priority", "3", "--max-attempts", "7")
    more = ("--backoff", "2s", "--lease", "PT1M", "--run-at", "2030-01-31T08:00:00Z", "--ulid", ulid)
    after = ("--after", f"{before[:10]}:end", "--after", f"op:{op_id}")
    scheduled(vox, *options, *more, *after, "--", "printf", "--json", "--", "x")
    shown = vox("job", "show", ulid, "--json").document
    assert shown["manifest"].pop("nonce")
    assert shown["manifest"] == {
        "args": [],
        "command": ["printf", "--json", "--", "x"],
        "timeout": 3_600,
        "env": {"A": "b=c", "EMPTY": ""},
        "cwd": "/",
        "after": [{"job": before, "when": "end"}, {"op": op_id}],
    }
    assert (shown["priority"], shown["max_attempts"], shown["backoff_ms"]) == (3, 7, 2_000)
    assert (shown["lease_ms"], shown["not_before_ms"]) == (60_000, 1_896_076_800_000)
    waits = {(each["job_id"], each["awaited"], each["kind"]) for each in shown["predecessors"]}
    assert waits == {(before, "end", "test.work"), (op_id, "op", "")}
    assert (shown["waits"], shown["state"], shown["kind"]) == (2, "pending", "exec")
    assert vox("job", "show", before, "--json").document["successors"] == [shown["job_id"]]


def test_the_jobs_of_a_file_are_scheduled_together_also_from_stdin(vox: VoxCommand) -> None:
    one, two = new_key(), new_key()
    text = f"kind: test.two\nulid: {two}\nafter: [{one}]\n---\nkind: test.one\nulid: {one}\n"
    (vox.folder / "jobs.yaml").write_text(text)
    first = vox("job", "schedule", "-f", "jobs.yaml", "--json").document
    assert [(each["kind"], each["is_new"]) for each in first] == [("test.one", True), ("test.two", True)]
    arguments = ("job", "schedule", "-f", "-", "--json")
    program = Program(arguments, vox.environment, module="vox_mesh.cli", folder=str(vox.folder))
    with Process(program, has_stdin=True) as process:
        assert process.stdin is not None
        process.stdin.write(text)
        out, err = process.communicate(_PATIENCE_S)
    assert (process.wait(), out.count('"is_new": false')) == (0, 2)
    assert [line.split(" (")[1] for line in err.splitlines()] == [
        f"job {each['job_id'][:12]}), not scheduled again" for each in first
    ]
    assert vox("job", "schedule", "-f", "jobs.yaml", "--once").code == 4
    new = vox("job", "schedule", "-f", "jobs.yaml", "--new")
    assert (new.code, "the ULID is taken" in new.error) == (2, True)


def test_what_is_wrong_with_manifests_is_reported_line_by_line_and_nothing_is_scheduled(
    vox: VoxCommand,
) -> None:
    path = vox.folder / "bad.yaml"
    path.write_text("kind: test.work\n---\nkind: Test\npriority: 9\n---\ncommand: [make]\ncolour: red\n")
    ended = vox("job", "schedule", "-f", "bad.yaml")
    assert (ended.code, ended.out) == (2, "")
    reported = [line.split(": ")[:2] for line in ended.err.splitlines()]
    assert reported == [
        ["bad.yaml:3", "kind"],
        ["bad.yaml:4", "priority"],
        ["bad.yaml:6", "timeout"],
        ["bad.yaml:7", "colour"],
    ]
    one, two = new_key(), new_key()
    waiting = f"kind: a\nulid: {one}\nafter: [{two}]\n---\nkind: b\nulid: {two}\nafter: [{one}]\n"
    path.write_text(waiting)
    circle = vox("job", "schedule", "-f", "bad.yaml")
    assert (circle.code, circle.err) == (
        2,
        f"bad.yaml: after: these wait for each other: {one} -> {two} -> {one}\n",
    )
    path.write_text(f"kind: test.work\n---\nkind: test.work\nafter: [{one}]\n")
    unknown = vox("job", "schedule", "-f", "bad.yaml")
    assert (unknown.code, f"there is no job {one}" in unknown.error) == (1, True)
    assert vox("job", "schedule", "-f", "nowhere.yaml").code == 2
    assert vox("job", "list").out == "none\n"


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ("", "pass exactly one of"),
        ("--kind a -- true", "pass exactly one of"),
        ("make test", "the command must follow `--`"),
        ("greet {}", "pass --kind KIND --payload 'JSON'"),
        ("--payload 1 -- true", "--payload needs --kind"),
        ("--kind a --payload {", "--payload"),
        ("--kind a --payload Ada", """must be JSON, such as '{"a": 1}' or '"text"'"""),
        ("-f x --priority 1", "--priority can't be combined with --file"),
        ("-f x --tag gpu", "--tag can't be combined with --file"),
        ("-f x --retries 1", "--retries can't be combined with --file"),
        ("--env A -- true", "must be NAME=VALUE, got 'A'"),
        ("--kind a --env A=b", "env: is of use only with a command"),
        ("--kind A", "kind: "),
        ("--kind a --priority 4", "an integer from 0 to 3"),
        ("--kind a --run-at soon", "run_at: 'soon' is no time"),
        ("--kind a --after xyz", "'xyz' names no job"),
        ("--kind a --after 123456:never", "'never' is neither success nor end"),
        ("--kind a --after op:1", "'1' is not the ULID of an op"),
        ("--once --new --kind a", "--once and --new can't be combined"),
        ("--kind a --isolated", "--isolated needs a command"),
        ("--isolated --cwd / -- true", "--isolated and --cwd can't be combined"),
        ("--retries 1 --max-attempts 2 -- true", "--retries and --max-attempts can't be combined"),
        ("--cwd here -- true", "'here' is not an absolute path"),
    ],
)
def test_a_job_that_is_asked_for_wrongly_ends_with_2_and_one_line(
    arguments: str, fault: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOX_MESH_ENABLED", "1")
    assert_wrong_usage(f"job schedule {arguments}", fault, capsys)


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("job list --state done", "--state"),
        ("job list --counts --state failed", "--counts can be combined with --kind only"),
        ("job wait", "JOB..."),
        ("job wait a --timeout soon", "not a duration"),
        ("job abort", "pass either JOB or a filter"),
        ("job abort 123456 --kind a", "pass either JOB or a filter"),
        ("job abort --state failed", "--state"),
        ("job retry --state pending", "--state"),
        ("job verify", "pass either JOB or --file"),
        ("job verify 123456 --key k", "--key needs --file"),
        ("job verify --file x --key k", "must be ed25519:"),
        ("job graph --dot --json", "can't be combined"),
        ("job rebuild", "pass either --check or --repair"),
    ],
)
def test_wrong_usage_of_other_commands_ends_with_2_and_one_line(
    command: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_wrong_usage(command, fault, capsys)


_SHARED: Final = (
    *("schedule --kind a", "list", "show 123456", "wait 123456", "logs 123456", "abort 123456", "ready"),
    *("retry 123456", "yield 123456", "graph", "dead", "verify 123456", "bundle 123456", "rebuild --check"),
)


@pytest.mark.parametrize("command", _SHARED)
def test_on_the_memory_home_they_say_why_they_make_no_sense(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["job", *command.split()]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert f"`vox-mesh job {command.split()[0]}` needs a mesh" in shown.err
    assert "vox-mesh init" in shown.err


@pytest.mark.parametrize("command", ["schedule --kind a", "wait 123456", "abort --kind a", "verify 123456"])
def test_with_the_database_away_they_end_with_3(vox: VoxCommand, command: str) -> None:
    away = vox.having(VOX_DB_URL=f"http://127.0.0.1:{free_port()}")
    ended = away("job", *command.split())
    assert (ended.code, "can't be reached" in ended.error) == (3, True)


def test_waiting_without_a_worker_says_how_to_start_one(vox: VoxCommand) -> None:
    with vox.launch("job", "schedule", "--wait", "--", "true") as command:
        assert command.stderr is not None
        advice = next(line for line in command.stderr if "no worker" in line)
        command.send_signal(signal.SIGINT)
        _, err = command.communicate(_PATIENCE_S)
    (job,) = listed(vox, "list")
    assert err.startswith(f"vox-mesh: interrupted; the job goes on: wait with `vox-mesh job wait {job[:6]}")
    assert advice == "vox-mesh: no worker runs exec jobs yet; start one: `vox-mesh up --worker-exec`\n"


# --- looking -------------------------------------------------------------------------------------


def test_a_job_is_found_by_id_beginning_and_ulid_and_not_by_what_fits_several(vox: VoxCommand) -> None:
    job = scheduled(vox, "--kind", "test.work", "--new")
    job_id, ulid = job["job_id"], job["ulid"]
    for name in (job_id, job_id[:6], job_id[:26], ulid, ulid.lower()):
        assert vox("job", "show", name, "--json").document["job_id"] == job_id
    other = job_id[:8] + "".join("f" if digit == "0" else "0" for digit in job_id[8:])
    with database(vox) as connection:
        connection.execute(
            "INSERT INTO jobs (scope_id, repository_id, job_id, ulid, kind, priority, not_before_ms,"
            " max_attempts, backoff_ms, created_ms, scheduled_by, seed, last_op, manifest)"
            " SELECT scope_id, repository_id, ?, 'x', kind, priority, not_before_ms, max_attempts,"
            " backoff_ms, created_ms, scheduled_by, seed, last_op, manifest FROM jobs",
            [other],
        )
    for verb in ("show", "wait", "abort", "logs", "verify", "graph"):
        several = vox("job", verb, job_id[:7])
        assert (several.code, "several jobs begin with" in several.error) == (2, True)
    assert vox("job", "show", job_id[:9]).code == 0
    for verb in ("show", "wait", "yield", "retry", "bundle"):
        unknown = vox("job", verb, "0" * 64)
        assert (unknown.code, "there is no job" in unknown.error) == (1, True)
    for nonsense in (job_id[:5], "make"):
        assert "must be given by its id or ULID" in vox("job", "show", nonsense).error


def test_jobs_are_listed_the_newest_first_by_state_kind_and_node_and_counted(vox: VoxCommand) -> None:
    assert vox("job", "list").out == "none\n"
    one, two, three = kind(vox, "test.a"), kind(vox, "test.b"), kind(vox, "other", "--priority", "3")
    later = kind(vox, "test.b", "--run-at", "2030-01-01T00:00:00Z")
    taken(two)
    assert listed(vox, "list") == [later, three, two, one]
    assert listed(vox, "list", "--state", "running") == [two]
    assert listed(vox, "list", "--state", "succeeded") == []
    assert listed(vox, "list", "--kind", "test.*", "--limit", "2") == [later, two]
    (running,) = vox("job", "list", "--kind", "test.b", "--state", "running", "--json").document
    assert listed(vox, "list", "--node", running["claimer"]) == [two]
    assert running["claim_token"] > 0
    assert (running["attempts"], running["manifest"]["kind"]) == (1, "test.b")
    assert listed(vox, "ready") == [three, one]
    assert listed(vox, "ready", "--kind", "test.*") == [one]
    counts = {each["kind"]: each for each in vox("job", "list", "--counts", "--json").document}
    assert (counts["test.b"]["pending"], counts["test.b"]["running"], counts["other"]["failed"]) == (1, 1, 0)
    first = vox("job", "show", one, "--json").document
    assert counts["test.a"]["oldest_ms"] == first["not_before_ms"]
    (_, line) = vox("job", "list", "--counts", "--kind", "other").out.splitlines()
    assert line.split()[:2] == ["other", "1"]
    heading, *lines = vox("job", "list").out.splitlines()
    assert heading.split()[:3] == ["job_id", "kind", "state"]
    assert lines[2].split()[:3] == [two[:12], "test.b", "running"]


def test_all_of_a_job_is_shown_with_its_progress_and_what_it_left(vox: VoxCommand) -> None:
    job = kind(vox, "test.work", "--payload", '{"text": "\\u001b[31m"}')
    after = kind(vox, "test.next", "--after", job)
    done(job)
    shown = vox("job", "show", job, "--json").document
    assert (shown["state"], shown["progress"], shown["message"]) == ("succeeded", 0.5, "half of it")
    (output,) = shown["output_artifacts"]
    assert (output["name"], output["type"]) == ("result", "application/json")
    assert shown["successors"] == [after]
    text = vox("job", "show", job).out
    lines = [line.split() for line in text.splitlines()]
    assert ["progress", "50%"] in lines
    assert ["claimer", shown["claimer"]] in lines
    assert [
        "result",
        output["hash"],
        str(output["size"]),
        output["type"],
    ] not in lines  # the output itself, by name
    assert any("result" in line and output["hash"] in line for line in lines)
    assert "\x1b" not in text
    assert '"kind": "test.work"' in text


def test_commands_that_only_look_make_no_key(vox: VoxCommand) -> None:
    for command in ("list", "list --counts", "ready", "dead", "graph", "rebuild --check"):
        assert vox("job", *command.split()).code == 0
    assert not (vox.folder / ".vox/slots").exists()


# --- waiting -------------------------------------------------------------------------------------


def test_waiting_ends_with_0_if_all_succeed_and_1_if_one_does_not_or_the_time_is_over(
    vox: VoxCommand,
) -> None:
    good, bad, never = kind(vox), kind(vox, "test.fail"), kind(vox, "unknown.kind")
    done(good, bad)
    ended = vox("job", "wait", good, good[:8], "--json")
    assert (ended.code, [each["state"] for each in ended.document]) == (0, ["succeeded"])
    ended = vox("job", "wait", good, bad)
    assert (ended.code, ended.err) == (1, "")
    assert "it can't be done" in ended.out
    late = vox("job", "wait", good, never, "--timeout", "10ms", "--json")
    assert (late.code, [each["state"] for each in late.document]) == (1, ["succeeded", "pending"])
    assert late.err == "vox-mesh: 1 of 2 jobs have not ended within the timeout\n"


@pytest.mark.parametrize("home", ["file", "mesh"])
def test_one_that_waits_is_notified_when_the_job_ends(
    home: str, vox: VoxCommand, request: pytest.FixtureRequest
) -> None:
    there = {}
    if home == "mesh":
        server: Server = request.getfixturevalue("shared_server")
        there = {"db_url": server.url, "db_token": server.token, "scope_id": new_key()}
        vox = vox.at(server).having(VOX_MESH_SCOPE_ID=there["scope_id"])
    job = kind(vox)
    with vox.launch("job", "wait", job) as waiting, vox.launch("job", "logs", job, "--follow") as following:
        assert waiting.poll() is None
        done(job, **there)
        out, err = waiting.communicate(_PATIENCE_S)
        logged = following.communicate(_PATIENCE_S)
    assert (waiting.wait(), "succeeded" in out) == (0, True)
    assert all("no worker runs" in line for line in err.splitlines())  # if starting took seconds
    assert (following.wait(), logged) == (0, ("", "at work\n"))


def test_a_job_is_scheduled_and_waited_for_in_one(vox: VoxCommand) -> None:
    ulid = new_key()
    with vox.launch("job", "schedule", "--once", "--wait", "--ulid", ulid, "--", "false") as plain:
        assert plain.stdout.readline().startswith("scheduled job")  # so it is scheduled
        asked = ("job", "schedule", "--once", "--wait", "--json", "--ulid", ulid, "--", "false")
        with vox.launch(*asked) as documents:
            done(ulid)
            out, err = documents.communicate(_PATIENCE_S)
        text = plain.communicate(_PATIENCE_S)[0]
    assert (documents.wait(), "already" in err) == (1, True)
    assert ('"is_new": false' in out, '"exit_code": 1' in out) == (True, True)
    assert (plain.wait(), text.split(" ", 2)[2]) == (1, "failed: ended with exit code 1\n")


def test_in_a_terminal_there_is_a_progress_bar(vox: VoxCommand) -> None:
    job = kind(vox)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "vox_mesh.cli", "job", "wait", job],
        cwd=vox.folder,
        env=vox.environment | {"TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        try:
            drawn = os.read(ours, 65_536).decode()
            while "0%" not in drawn:
                drawn += os.read(ours, 65_536).decode()
            done(job)
            while "100%" not in drawn:
                drawn += os.read(ours, 65_536).decode()
            out, _ = process.communicate(timeout=_PATIENCE_S)
        finally:
            process.kill()
    os.close(ours)
    assert (process.returncode, "waiting" in drawn, b"succeeded" in out) == (0, True, True)
