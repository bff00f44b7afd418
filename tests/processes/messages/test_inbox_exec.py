"""`inbox --exec`: a message is its command's while that runs, and no one's when that is stopped."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Final

import pytest

from tests.support.locks.lock_runs import FAMILY, PATIENCE_S, command_run, stop
from tests.support.running.command_homes import on_file as on_file
from tests.support.running.command_homes import settings as settings
from tests.support.running.lengths import SOAK, cases_in_soak, in_soak
from tools.homes import FILE, MESH
from tools.sqld import Server
from vox_mesh import Mesh, Settings
from vox_mesh.jobs.exec.process_group import members
from vox_mesh.model.messages.records import Message

_FAMILY: Final = FAMILY[-1]
_LEASE_S: Final = 1.5
_SHORT: Final = ("--lease", f"{_LEASE_S * 1_000:.0f}ms")
_STOPS: Final = 60 if SOAK else 1
_UNTIL_TOLD: Final = "echo begun; read -r _ <go"
"""A command that says that it runs, and ends when something is written to `go`."""


async def _until(mesh: Mesh, message: Message, condition: Callable[[Message], bool]) -> Message:
    """Wait until a message is as it should be."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            seen = mesh.store.change_count
            found = await mesh.messages.queries.find(message.message_uuid)
            assert found is not None
            if condition(found):
                return found
            await mesh.store.changed(seen)


async def _next(mesh: Mesh) -> Message:
    """The next message that can be had."""
    async with asyncio.timeout(PATIENCE_S), aclosing(mesh.messages.receive("b")) as messages:
        return await anext(messages)


async def _go_on(go: Path) -> None:
    """Have a command that waits for it end."""
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.to_thread(go.write_text, "now\n")


# --- what ends it --------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize(
    ("settings", "number", "more"),
    [
        (FILE, signal.SIGINT, ()),
        (MESH, signal.SIGTERM, ("--follow",)),
        *in_soak((FILE, signal.SIGTERM, ("--follow",)), (MESH, signal.SIGINT, ())),
    ],
    indirect=["settings"],
    ids=str,
)
async def test_a_signal_stops_the_whole_group_and_gives_the_message_back_at_once(
    settings: Settings, number: signal.Signals, more: tuple[str, ...]
) -> None:
    async with Mesh.open_command(settings) as mesh:
        sent = [await mesh.messages.send("b", text, sender="a") for text in ("first", "second")]
        async with command_run(settings, "inbox", "b", "--exec", _FAMILY, *more) as run:
            await run.meet()
            run.process.send_signal(number)
            assert await run.ended() == (128 + number, "")
            assert members(run.group) == set()
        found = await mesh.messages.poll_inbox_from_db("b")  # though their leases would have been long
        assert [(each.message_uuid, each.delivery_attempts) for each in found] == [
            (sent[0].message_uuid, 2),
            (sent[1].message_uuid, 1),
        ]


@pytest.mark.parametrize("settings", [FILE, *cases_in_soak(MESH)], indirect=True, ids=str)
async def test_a_signal_while_it_waits_ends_it_with_nothing_claimed(settings: Settings) -> None:
    async with Mesh.open_command(settings) as mesh:
        sent = await mesh.messages.send("b", "hello", sender="a")
        async with command_run(settings, "inbox", "b", "--follow", "--exec", "echo done") as run:
            assert await run.heard() == "done"
            await _until(mesh, sent, lambda found: found.state == "acked")
            run.process.send_signal(signal.SIGTERM)
            assert await run.ended() == (128 + signal.SIGTERM, "")
        assert await mesh.messages.queries.counts() == {"acked": 1}


@pytest.mark.soak
@pytest.mark.parametrize("settings", [MESH, *in_soak(FILE)], indirect=True, ids=str)
async def test_a_signal_at_any_moment_leaves_nothing_claimed_and_nothing_lost(
    settings: Settings, seed: int
) -> None:
    chance = random.Random(seed)
    following = ("inbox", "b", "--follow", "--exec", "cat >/dev/null")
    async with Mesh.open_command(settings) as mesh:
        await mesh.messages.send("b", "to see how long it takes", sender="a")
        began = time.monotonic()
        async with command_run(settings, *following, "--limit", "1") as run:
            assert await run.ended() == (0, "")
        usual_s = time.monotonic() - began
        for number in range(_STOPS):
            await asyncio.gather(*(mesh.messages.send("b", number, sender=f"a{each}") for each in range(9)))
            delay_s = usual_s * chance.uniform(0.5, 1.1)
            async with command_run(settings, *following) as run:
                with suppress(TimeoutError):
                    await asyncio.wait_for(run.process.wait(), delay_s)
                run.process.send_signal(signal.SIGTERM)
                code, said = await run.ended()
            about = f"seed {seed}, {number}, after {delay_s:.3f} s, {code}: {said}"
            assert code in (128 + signal.SIGTERM, -signal.SIGTERM), about
            assert {*await mesh.messages.queries.counts()} <= {"acked", "stored"}, about
        assert sum((await mesh.messages.queries.counts()).values()) == 1 + 9 * _STOPS


async def test_kill_9_leaves_no_process_and_the_message_comes_again_after_its_lease(
    on_file: Settings,
) -> None:
    async with Mesh.open_command(on_file) as mesh:
        sent = await mesh.messages.send("b", "hello", sender="a")
        async with command_run(on_file, "inbox", "b", *_SHORT, "--exec", _FAMILY) as run:
            await run.meet()
            run.process.kill()
            await run.gone()
        again = await _next(mesh)
        assert (again.message_uuid, again.delivery_attempts) == (sent.message_uuid, 2)


async def test_kill_9_of_the_command_stops_its_children_and_counts_as_a_failure(on_file: Settings) -> None:
    async with Mesh.open_command(on_file) as mesh:
        sent = await mesh.messages.send("b", "hello", sender="a", max_attempts=1)
        async with command_run(on_file, "inbox", "b", "--exec", _FAMILY) as run:
            await run.meet()
            os.kill(run.command, signal.SIGKILL)
            code, said = await run.ended()
            assert (code, "exited with 137 (SIGKILL)" in said) == (1, True)
            assert members(run.group) == set()
        found = await mesh.messages.queries.find(sent.message_uuid)
        assert found is not None
        assert (found.state, found.ended_reason) == ("dead", "command exited with 137 (SIGKILL)")


# --- its lease -----------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [MESH, *cases_in_soak(FILE)], indirect=True, ids=str)
async def test_the_lease_is_renewed_for_as_long_as_the_command_runs(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("go")
    async with Mesh.open_command(settings) as mesh:
        sent = await mesh.messages.send("b", "hello", sender="a")
        async with command_run(settings, "inbox", "b", *_SHORT, "--exec", _UNTIL_TOLD) as run:
            assert await run.heard() == "begun"
            first = await _until(mesh, sent, lambda found: found.claim_until_ms is not None)
            past_it = (first.claim_until_ms or 0) + 1_000 * _LEASE_S
            await _until(mesh, sent, lambda found: (found.claim_until_ms or 0) > past_it)
            assert await mesh.messages.poll_inbox_from_db("b") == []
            await _go_on(tmp_path / "go")
            assert await run.ended() == (0, "")
        acked = await _until(mesh, sent, lambda found: found.state == "acked")
        assert (acked.delivery_attempts, acked.claim_owner) == (1, first.claim_owner)


async def test_a_message_that_is_lost_meanwhile_stops_the_command_and_stays_its_heirs(
    on_file: Settings,
) -> None:
    async with Mesh.open_command(on_file) as mesh:
        sent = await mesh.messages.send("b", "hello", sender="a")
        async with command_run(on_file, "inbox", "b", *_SHORT, "--exec", _FAMILY) as run:
            await run.meet()
            stop(run.process.send_signal, on_file.file_path)
            heir = await _next(mesh)
            run.process.send_signal(signal.SIGCONT)
            code, said = await run.ended()
            assert (code, f"lease lost, command stopped: message={sent.message_uuid}" in said) == (1, True)
            assert members(run.group) == set()
        await mesh.messages.ack(heir)


async def test_the_acknowledgement_is_said_when_the_database_is_back(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("go")
    settings = MESH.settings(tmp_path, server, db_deadline="500ms", db_request_timeout="500ms")
    async with Mesh.open_command(settings) as mesh:
        sent = await mesh.messages.send("b", "hello", sender="a")
    async with command_run(settings, "inbox", "b", "--exec", f"{_UNTIL_TOLD}; echo ended >&2") as run:
        assert await run.heard() == "begun"
        server.kill()
        await _go_on(tmp_path / "go")
        assert run.process.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            assert await run.process.stderr.readline() == b"ended\n"
        await asyncio.to_thread(server.start)
        code, said = await run.ended()
        assert (code, "Traceback" in said) == (0, False)
    async with Mesh.open_command(settings) as mesh:
        found = await mesh.messages.queries.find(sent.message_uuid)
        assert found is not None
        assert (found.state, found.delivery_attempts) == ("acked", 1)


async def test_a_database_that_stays_away_stops_the_command_when_its_lease_is_over(
    tmp_path: Path, server: Server
) -> None:
    settings = MESH.settings(tmp_path, server, db_deadline="500ms", db_request_timeout="500ms")
    async with Mesh.open_command(settings) as mesh:
        await mesh.messages.send("b", "hello", sender="a")
    async with command_run(settings, "inbox", "b", *_SHORT, "--exec", _FAMILY) as run:
        await run.meet()
        server.kill()
        code, said = await run.ended()
        assert (code, "lease lost" in said, "Traceback" in said) == (3, True, False)
        assert members(run.group) == set()
