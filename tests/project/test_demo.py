"""The demo, as people run it: what it claims is true, and it says so if it is not."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.support.running.lengths import only_at_full_length
from tools.demo.claims import CLAIMS, check_claims, gather
from tools.demo.workspace import FOLDER, Workspace
from vox_mesh import Mesh

_ROOT: Final = Path(__file__).resolve().parents[2]
_COMMAND: Final = (sys.executable, "-m", "tools.demo")
_TIMEOUT_S: Final = 120
_PAGE: Final = {"Sec-Fetch-Site": "same-origin"}
"""What a browser says of requests of the page."""

_SHOWN: Final = b"\x1b[?25h"
_HIDDEN: Final = b"\x1b[?25l"


def environment() -> dict[str, str]:
    """Modules of this checkout, and a terminal if there is one."""
    return {**os.environ, "PYTHONPATH": str(_ROOT), "TERM": "xterm"}


def demo(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run it without a terminal."""
    return subprocess.run(
        [*_COMMAND, *options],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )


def demo_that_is_kept(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it as `make demo KEEP=1` does; sign in to its console, and end it with Ctrl-C."""
    with (
        subprocess.Popen(
            [*_COMMAND, "--keep"],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
        ExitStack() as ending,
    ):
        assert process.stdout is not None
        printed = ""
        ending.callback(process.kill)
        for line in process.stdout:
            printed += line
            if sign_in(line, "the console stays open"):
                process.send_signal(signal.SIGINT)
        status = process.wait(_TIMEOUT_S)
    assert "the console stays open" in printed, printed
    return subprocess.CompletedProcess(process.args, status, printed, "")


def sign_in(line: str, said: str) -> bool:
    """Sign in to the console with the address of a line that says this; return whether the line has one."""
    opened = re.search(rf"{said}: (http://[\d.:]+)/ui/#code=(\S+)", line)
    if opened is None:
        return False
    url, code = opened.groups()
    assert httpx.post(f"{url}/ui/session", json={"code": code}, headers=_PAGE).is_success
    assert httpx.get(f"{url}/ui/").is_success
    return True


def assert_healthy(folder: Path, printed: str) -> None:
    """The doctor has nothing to say about the mesh that the demo leaves."""
    (export,) = re.findall(r"^  (export .*)$", printed, re.MULTILINE)
    script = f"{export}\n{sys.executable} -m vox_mesh.cli doctor"
    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    assert [line for line in done.stdout.splitlines() if line.startswith(("warn", "fail"))] == []
    assert "ok     conflicts" in done.stdout


def assert_gone(pids: list[int]) -> None:
    """None of these is there any more."""
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def processes(printed: str) -> list[int]:
    """The ones that the demo listed."""
    return [int(each) for each in re.findall(r"as process (\d+)", printed)]


def looked_around(folder: Path, printed: str) -> str:
    """What the commands print that the demo names in the end."""
    commands = re.findall(r"^  (.*(?:export |vox-mesh ).*)$", printed, re.MULTILINE)
    assert commands.pop().endswith(" top")  # which is for a terminal
    script = ["bash", "-ec", "\n".join(commands)]
    done = subprocess.run(
        script, cwd=folder, env=environment(), capture_output=True, text=True, timeout=_TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- what can be falsified -----------------------------------------------------------------------


def altered(*statements: str) -> Callable[[Workspace], None]:
    """Do this to the database."""

    def alter(workspace: Workspace) -> None:
        connection = sqlite3.connect(workspace.database)
        with connection:
            for statement in statements:
                assert connection.execute(statement).rowcount > 0, statement
        connection.close()

    return alter


def a_line_is_swapped(workspace: Workspace) -> None:
    path = next((workspace.folder / "board").glob("*.jsonl"))
    first, second, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([second, first, *rest]))


def forgotten(event: str) -> Callable[[Workspace], None]:
    """Have no one tell of such an event."""

    def forget(workspace: Workspace) -> None:
        kept = [each for each in workspace.events() if each["event"] != event]
        assert len(kept) < len(workspace.events())
        workspace.event_log.write_text("".join(json.dumps(each) + "\n" for each in kept))

    return forget


_DOUBLED: Final = """
INSERT INTO agent_oplog (scope_id, repository_id, node_id, seq, op_id, kind, hlc, causal_deps, payload, prev,
    hash, signature, accepted)
SELECT scope_id, repository_id, node_id, 1 + (SELECT max(seq) FROM agent_oplog WHERE node_id = o.node_id),
    '7' || substr(op_id, 2), kind, '9' || substr(hlc, 2), causal_deps, payload, prev, hash, signature,
    accepted
FROM agent_oplog AS o WHERE kind = 'CompleteJob' AND accepted LIMIT 1"""
_CYCLE: Final = """
INSERT INTO job_predecessors
SELECT a.scope_id, a.repository_id, a.job_id, b.job_id, 'success' FROM jobs AS a, jobs AS b
WHERE a.kind = 'fetch' AND b.kind = 'release' LIMIT 1"""

FALSIFIED: Final[dict[str, tuple[str, Callable[[Workspace], None]]]] = {
    "completed 2 times": ("jobs", altered(_DOUBLED)),
    "who did not tell of it": ("jobs", forgotten("did")),
    "instead of 60": ("jobs", altered("DELETE FROM jobs WHERE kind = 'release'")),
    "was claimed before release 1.4": ("order", altered(_CYCLE)),
    "was done by reviewer": (
        "routes",
        altered("UPDATE jobs SET claimer = 'reviewer' WHERE kind = 'release'"),
    ),
    "old token was not refused": ("takeover", forgotten("refused")),
    "it can't be worked out": ("takeover", forgotten("killed")),
    "was written under token": ("fences", a_line_is_swapped),
    "which was not its own": ("fences", forgotten("holds")),
    "is stored": (
        "messages",
        altered("UPDATE a2a_messages SET state = 'stored', acknowledged = 0, ended_ms = NULL WHERE id = 9"),
    ),
    "reached no agent": ("messages", forgotten("received")),
    "the plan is 'another'": ("conflict", altered("UPDATE memories SET content = 'another'")),
    "0 conflicts instead of 1": ("conflict", altered("DELETE FROM occ_conflicts")),
    "it is open": (
        "conflict",
        altered("UPDATE occ_conflicts SET state = 'open', resolved_at = NULL, resolution = NULL"),
    ),
    "verdicts since the last seal": (
        "chains",
        altered("UPDATE agent_oplog SET result = 'x' WHERE kind = 'CompleteJob'"),
    ),
}
"""By what is to be said: the claim, and what is done to what the demo left."""


async def test_the_demo_proves_what_it_claims_and_sees_what_was_falsified(tmp_path: Path) -> None:
    done = demo_that_is_kept(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for claim in CLAIMS:
        assert re.search(rf"^ok   {claim.__name__} ", done.stdout, re.MULTILINE)
    assert_healthy(tmp_path, done.stdout)
    assert "\x1b" not in done.stdout
    assert len(processes(done.stdout)) == 4  # one came twice
    assert_gone(processes(done.stdout))

    assert "chains: intact" in looked_around(tmp_path, done.stdout)

    for n, (said, (name, falsify)) in enumerate(FALSIFIED.items()):
        workspace = Workspace(tmp_path / f"{n}" / FOLDER)
        shutil.copytree(tmp_path / FOLDER, workspace.folder)
        falsify(workspace)
        async with Mesh.open_command(workspace.settings()) as mesh:
            claims = check_claims(await gather(mesh, workspace))
        faults = [fault for claim in claims if claim.name == name for fault in claim.faults]
        assert any(said in fault for fault in faults), (said, claims)

    assert demo(tmp_path, "--check").returncode == 0
    found = demo(tmp_path / "0", "--check")
    assert found.returncode == 1
    assert re.search(r"^NO   jobs .*\n.*completed 2 times", found.stdout, re.MULTILINE)
    assert "THIS IS WRONG, please report it: jobs" in found.stdout


def test_the_console_is_open_while_the_plain_demo_runs(tmp_path: Path) -> None:
    with (
        subprocess.Popen(
            _COMMAND,
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
        ExitStack() as ending,
    ):
        assert process.stdout is not None
        ending.callback(process.kill)
        assert any(sign_in(line, "the console") for line in process.stdout)
        process.send_signal(signal.SIGINT)
        printed = process.stdout.read()
        assert process.wait(_TIMEOUT_S) == 130, printed


def test_ctrl_c_in_the_middle_of_a_strict_run_leaves_no_process_and_a_usable_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*_COMMAND, "--strict"],
        cwd=tmp_path,
        env=environment(),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=_own_terminal,
    )
    os.close(theirs)
    printed = b""
    try:
        printed = read_until(ours, lambda said: b"under its lock" in said)
        os.write(ours, b"\x03")
        printed += read_until(ours, lambda _: False)
        assert process.wait(_TIMEOUT_S) == 130
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    for said in (b"makes the mesh strict", b"is refused the lock", b"which is revoked", b"approves it"):
        assert said in printed
    assert b"alive" in printed  # the lines that are redrawn
    assert printed.rindex(_SHOWN) > printed.rindex(_HIDDEN)
    assert b"Traceback" not in printed
    pids = processes(printed.decode())
    assert len(pids) == 2
    assert_gone(pids)


@pytest.mark.parametrize("module", ["tools.demo.run", "rich.console"])
def test_ctrl_c_while_the_demo_still_loads_says_nothing(module: str, tmp_path: Path) -> None:
    interrupted = f"""
import runpy, signal, sys

class Impatient:
    def find_spec(self, name, *_):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Impatient())
runpy.run_module("tools.demo", run_name="__main__", alter_sys=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", interrupted],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert not (tmp_path / FOLDER).exists()


@pytest.mark.soak
@only_at_full_length
def test_a_demo_that_is_killed_leaves_no_orchestrator_behind(tmp_path: Path) -> None:
    with subprocess.Popen(
        _COMMAND, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pids: list[int] = []
        for line in process.stdout:
            pids += processes(line)
            if len(pids) == 2:
                break
        process.kill()
    assert len(pids) == 2
    until_gone(pids)


@pytest.mark.soak
@only_at_full_length
def test_the_demo_runs_on_a_real_server_too(tmp_path: Path) -> None:
    done = demo(tmp_path, "--server", "sqld")
    assert done.returncode == 0, done.stdout + done.stderr
    assert demo(tmp_path, "--check").returncode == 0  # by the copy that stays


def _own_terminal() -> None:
    """Have a Ctrl-C reach it, as in a terminal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def read_until(terminal: int, is_enough: Callable[[bytes], bool]) -> bytes:
    """What a terminal shows, up to something or to its end."""
    said = b""
    deadline = time.monotonic() + _TIMEOUT_S
    while not is_enough(said) and time.monotonic() < deadline:
        try:
            more = os.read(terminal, 65_536)
        except OSError:  # the other end is closed
            break
        if not more:
            break
        said += more
    return said


def until_gone(pids: list[int]) -> None:
    """Wait until these processes have ended, whose parent is gone."""
    deadline = time.monotonic() + _TIMEOUT_S
    left = pids
    while left and time.monotonic() < deadline:
        left = [pid for pid in left if _is_there(pid)]
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
