"""`lock run`: whatever is killed, nothing of the command is left over, and the lock is free in time."""

from __future__ import annotations

import asyncio
import os
import pty
import random
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.support.locks.lock_runs import FAMILY, KEY, PATIENCE_S, lock_run, stop
from tests.support.running.command_homes import on_file as on_file
from tests.support.running.command_homes import settings as settings
from tests.support.running.lengths import SOAK, cases_in_soak
from tools.homes import FILE, MESH
from tools.sqld import Server
from vox_mesh import Mesh, Settings
from vox_mesh.jobs.exec.process_group import GRACE_S, ProcessGroup, Start, members

_TTL_S: Final = 1.5
_SHORT: Final = ("--ttl", f"{_TTL_S * 1_000:.0f}ms")
_KILLS: Final = 60 if SOAK else 2
_SLACK_S: Final = 5.0  # of a machine that has other things to do
_IN_TERMINAL: Final = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


# --- what ends it --------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [MESH, *cases_in_soak(FILE)], indirect=True, ids=str)
async def test_kill_9_of_the_wrapper_leaves_no_process_and_the_lock_expires(settings: Settings) -> None:
    async with Mesh.open_command(settings) as mesh, lock_run(settings, KEY, *_SHORT, "--", *FAMILY) as run:
        await run.meet()
        run.process.kill()
        killed = time.monotonic()
        await run.gone()
        assert time.monotonic() - killed < _SLACK_S
        lock = await mesh.locks.acquire(KEY, wait=PATIENCE_S)
        assert time.monotonic() - killed < _TTL_S + _SLACK_S
        assert lock.holder_agent != "coder"


@pytest.mark.soak
async def test_kill_9_of_the_wrapper_at_any_moment_leaves_no_process(on_file: Settings, seed: int) -> None:
    chance = random.Random(seed)
    async with lock_run(on_file, KEY, *_SHORT, "--", "true") as run:
        began = time.monotonic()
        await run.ended()
        usual_s = time.monotonic() - began
    for number in range(_KILLS):
        async with lock_run(on_file, f"{KEY}:{number}", *_SHORT, "--", *FAMILY) as run:
            delay_s = usual_s * chance.uniform(0.3, 1.0)
            with suppress(TimeoutError):
                await asyncio.wait_for(run.process.wait(), delay_s)
            run.process.kill()
            assert run.process.stdout is not None
            async with asyncio.timeout(PATIENCE_S):
                answer = await run.process.stdout.read()  # up to the end: no one has it open any more
            assert len(answer.split()) in (0, 2), f"seed {seed}, {number}, after {delay_s:.3f} s"


@pytest.mark.parametrize("settings", [FILE, *cases_in_soak(MESH)], indirect=True, ids=str)
async def test_kill_9_of_the_command_stops_its_children_and_releases_at_once(settings: Settings) -> None:
    async with Mesh.open_command(settings) as mesh, lock_run(settings, KEY, "--", *FAMILY) as run:
        await run.meet()
        os.kill(run.command, signal.SIGKILL)
        assert await run.ended() == (128 + signal.SIGKILL, "")
        assert members(run.group) == set()
        assert await mesh.locks.holders() == []


@pytest.mark.parametrize("settings", [MESH, *cases_in_soak(FILE)], indirect=True, ids=str)
async def test_a_broken_lock_stops_the_whole_group(settings: Settings) -> None:
    async with Mesh.open_command(settings) as mesh, lock_run(settings, KEY, *_SHORT, "--", *FAMILY) as run:
        await run.meet()
        await mesh.locks.break_lock(KEY, "to see what happens")
        broken = time.monotonic()
        code, said = await run.ended()
        assert (code, f"the lock on {KEY} was lost" in said, said.count("\n")) == (1, True, 1)
        assert time.monotonic() - broken < _TTL_S + _SLACK_S
        assert members(run.group) == set()
        assert await mesh.locks.holders() == []


async def test_a_wrapper_that_slept_through_its_lease_stops_the_command_and_not_its_heir(
    on_file: Settings,
) -> None:
    async with Mesh.open_command(on_file) as mesh, lock_run(on_file, KEY, *_SHORT, "--", *FAMILY) as run:
        await run.meet()
        stop(run.process.send_signal, on_file.file_path)
        heir = await mesh.locks.acquire(KEY, wait=PATIENCE_S)
        run.process.send_signal(signal.SIGCONT)
        code, said = await run.ended()
        assert (code, "was lost" in said) == (1, True)
        assert members(run.group) == set()
        assert [holder.fence_token for holder in await mesh.locks.holders()] == [heir.fence_token]


async def test_a_database_that_stays_away_stops_the_command_when_its_lease_is_over(
    tmp_path: Path, server: Server
) -> None:
    settings = MESH.settings(tmp_path, server, db_deadline="500ms", db_request_timeout="500ms")
    async with lock_run(settings, KEY, *_SHORT, "--", *FAMILY) as run:
        await run.meet()
        server.kill()
        code, said = await run.ended()
        assert (code, "was lost" in said, "Traceback" in said) == (1, True, False)
        assert members(run.group) == set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_to_the_wrapper_reaches_the_group_and_the_lock_is_released(
    on_file: Settings, number: signal.Signals
) -> None:
    await _ends_with_signal(on_file, number)


async def test_ctrl_c_releases_a_lock_of_the_mesh(tmp_path: Path, shared_server: Server) -> None:
    await _ends_with_signal(MESH.settings(tmp_path, shared_server), signal.SIGINT)


async def _ends_with_signal(settings: Settings, number: signal.Signals) -> None:
    async with Mesh.open_command(settings) as mesh, lock_run(settings, KEY, "--", *FAMILY) as run:
        await run.meet()
        run.process.send_signal(number)
        assert await run.ended() == (128 + number, "")
        assert members(run.group) == set()
        assert await mesh.locks.holders() == []


async def test_a_signal_while_it_waits_ends_it_and_leaves_no_place_in_the_queue(on_file: Settings) -> None:
    async with Mesh.open_command(on_file) as mesh:
        await mesh.locks.acquire(KEY)
        async with lock_run(on_file, KEY, "--wait", "60s", "--", "echo", "started") as run:
            async with asyncio.timeout(PATIENCE_S):
                async for holders in mesh.locks.watch():
                    if holders[0].waiting:
                        break
            run.process.send_signal(signal.SIGTERM)
            assert await run.ended() == (128 + signal.SIGTERM, "")
            assert [holder.waiting for holder in await mesh.locks.holders()] == [0]
            assert await run.heard() == ""


# --- what it passes on ---------------------------------------------------------------------------


async def test_exit_codes_are_passed_on_and_every_way_out_releases(on_file: Settings, tmp_path: Path) -> None:
    plain = tmp_path / "plain.txt"
    plain.write_text("no program")
    ways = {
        ("true",): 0,
        ("sh", "-c", "exit 7"): 7,
        ("sh", "-c", "kill -USR1 $$"): 128 + signal.SIGUSR1,
        ("no-such-command",): 127,
        (str(plain),): 126,
        ("sh", "-c", "sleep 1000 & exit 3"): 3,  # what it left behind is stopped
    }

    async def ended(number: int, command: tuple[str, ...]) -> tuple[int, str, str]:
        async with lock_run(on_file, f"{KEY}:{number}", "--", *command) as run:
            code, said = await run.ended()
            return code, said, await run.heard()  # no one has its stdout any more

    found = await asyncio.gather(*(ended(*each) for each in enumerate(ways)))
    for (command, code), (got, said, heard) in zip(ways.items(), found, strict=True):
        assert (got, heard) == (code, ""), command
        assert said.count("\n") == (code in (126, 127)), command
        assert said.startswith(f"vox-mesh: command {command[0]} can't be run: ") or not said
    async with Mesh.open_command(on_file) as mesh:
        assert await mesh.locks.holders() == []


async def test_the_command_has_its_streams_and_knows_its_lock(on_file: Settings) -> None:
    script = 'printf "%s\\n" "$VOX_LOCK_KEY" "$VOX_LOCK_FENCE" "$VOX_AGENT_ID"; cat; echo aside >&2'
    command = ("sh", "-c", script)
    async with Mesh.open_command(on_file) as mesh:
        before = await mesh.locks.acquire("a")
        await mesh.locks.release(before)
        async with lock_run(on_file, "b", "a", "--literal", "--agent", "me", "--", *command) as run:
            assert [await run.heard() for _ in range(2)] == ["b", "a"]
            token = int(await run.heard())
            assert token > before.fence_token
            assert await run.heard() == "me"
            assert {(each.lock_key, each.fence_token) for each in await mesh.locks.holders()} == {
                *(("a", token), ("b", token)),
            }
            assert run.process.stdin is not None
            run.process.stdin.write(b"through it\n")
            run.process.stdin.close()
            assert await run.heard() == "through it"
            assert await run.ended() == (0, "aside\n")


async def test_without_the_lock_the_command_is_not_started(on_file: Settings) -> None:
    async with Mesh.open_command(on_file) as mesh:
        await mesh.locks.acquire(KEY, agent="rival")
        async with lock_run(on_file, KEY, "--wait", "100ms", "--", "echo", "started") as run:
            code, said = await run.ended()
            assert (code, "held by rival" in said, said.count("\n")) == (1, True, 1)
            assert await run.heard() == ""


# --- in a terminal -------------------------------------------------------------------------------


async def test_in_a_terminal_the_command_has_the_keyboard_and_ctrl_c(on_file: Settings) -> None:
    script = 'read line; echo "got $line"; read line; echo "got $line"; sleep 1000 & exec sleep 1000'
    ours, theirs = pty.openpty()
    prefix = (sys.executable, "-c", _IN_TERMINAL)
    try:
        async with (
            lock_run(on_file, KEY, "--", "sh", "-c", script, prefix=prefix, terminal=theirs) as run,
            Mesh.open_command(on_file) as mesh,
        ):
            os.close(theirs)
            os.write(ours, b"hello\n")
            await asyncio.to_thread(_shown_until, ours, "got hello\r\n")
            run.group = os.tcgetpgrp(ours)
            assert run.group in members(run.group)
            os.write(ours, b"\x1a")  # Ctrl-Z: a lock holder goes on
            os.write(ours, b"again\n")
            await asyncio.to_thread(_shown_until, ours, "got again\r\n")
            os.write(ours, b"\x03")
            code, _ = await run.ended()
            assert code == 128 + signal.SIGINT
            assert members(run.group) == set()
            assert await mesh.locks.holders() == []
    finally:
        os.close(ours)


def _shown_until(terminal: int, text: str) -> None:
    shown = ""
    while text not in shown:
        assert select.select([terminal], [], [], PATIENCE_S)[0], f"{text!r} is not in {shown!r}"
        shown += os.read(terminal, 4_096).decode()


# --- the group itself ----------------------------------------------------------------------------


async def test_what_is_left_is_asked_to_end(tmp_path: Path) -> None:
    polite = "(trap 'echo bye >&3; exit' TERM; echo ready >&3; sleep 1000 & wait) & wait"
    assert await _said_when_stopped(tmp_path / "reported", polite) == "bye\n"


async def test_what_does_not_end_when_asked_to_is_killed(tmp_path: Path) -> None:
    stubborn = "trap '' TERM; sleep 1000 & echo ready >&3; sleep 1000"
    assert await _said_when_stopped(tmp_path / "reported", stubborn, grace_s=0.2) == ""


async def _said_when_stopped(path: Path, script: str, grace_s: float = GRACE_S) -> str:
    """Run a script until it is ready, and stop it; what it says then, up to the end of the last process."""
    os.mkfifo(path)
    start = Start(["sh", "-c", f"exec 3>{path}; {script}"], os.environ)
    running = asyncio.create_task(ProcessGroup(grace_s=grace_s).run(start))
    async with asyncio.timeout(PATIENCE_S):
        answer = await asyncio.to_thread(path.open)
        with answer:
            assert await asyncio.to_thread(answer.readline) == "ready\n"
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            return await asyncio.to_thread(answer.read)
