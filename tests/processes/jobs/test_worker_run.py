"""`worker run`: however its process ends, no job is lost or held, and no process is left."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.jobs import example_app, example_handlers, example_sync_app
from tests.support.locks.lock_runs import PATIENCE_S, Run, command_run
from tests.support.running.command_homes import on_file as on_file
from tests.support.running.command_homes import settings as settings
from tests.support.running.lengths import cases_in_soak, in_soak, only_at_full_length
from tools.homes import FILE, MESH
from tools.sqld import Server
from vox_mesh import Job, Manifest, Mesh, Settings
from vox_mesh.jobs.exec.process_group import members
from vox_mesh.jobs.jobs import Scheduled
from vox_mesh.model.nodes.liveness import NodeState

_ECHO: Final = "example.echo"
_HANDLERS: Final = ("--handlers", "my_handlers:handlers")
_JOBS: Final = 300
_ENOUGH: Final = 40
_LOOK_S: Final = 0.02


@pytest.fixture(autouse=True)
def my_handlers(tmp_path: Path) -> None:
    """A module of handlers in the working folder."""
    shutil.copy(str(example_handlers.__file__), tmp_path / "my_handlers.py")


class WorkerRun:
    """A `worker run` that has begun."""

    def __init__(self, run: Run, first: str) -> None:
        self.run = run
        fields = dict(each.split("=", 1) for each in first.partition("worker started: ")[2].split())
        self.node_id, self.kinds, self.room = fields["node_id"], fields["kinds"], fields["concurrency"]

    async def said(self, words: str) -> str:
        """Wait until it says so on stderr; the line."""
        return await _said(self.run, words)

    async def meet(self, pids: Path) -> None:
        """Wait until a command has written who it is: `run.group`."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if os.access(pids, os.R_OK):
                    break
                await asyncio.sleep(_LOOK_S)
        self.run.group = os.getpgid(_first_number(pids))
        assert len(members(self.run.group)) >= 3  # with the one that guards it

    def send(self, number: int) -> None:
        """Send it a signal."""
        self.run.process.send_signal(number)

    async def stopped(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Have it stop; the exit code, and what it still said."""
        self.send(number)
        return await self.run.ended()


def _first_number(file: Path) -> int:
    return int(file.read_text().split()[0])


async def _said(run: Run, words: str) -> str:
    assert run.process.stderr is not None
    heard = ""
    async with asyncio.timeout(PATIENCE_S):
        async for line in run.process.stderr:
            heard += line.decode()
            if words in line.decode():
                return line.decode().strip()
    raise AssertionError(f"it ended without {words!r}: {heard}")


@asynccontextmanager
async def worker_run(settings: Settings, *arguments: str) -> AsyncIterator[WorkerRun]:
    """A worker that takes jobs; whatever becomes of the test, it is gone at the end."""
    async with command_run(settings, "worker", "run", *arguments) as run:
        yield WorkerRun(run, await _said(run, "worker started: "))


async def _until(mesh: Mesh, condition: Callable[[dict[str, dict[str, int]]], bool]) -> None:
    """Wait until there are this many jobs of a kind in a state."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            seen = mesh.store.change_count
            if condition(await mesh.jobs.queries.counts()):
                return
            await mesh.store.changed(seen)


def _command(pids: Path, rest: str = "") -> Manifest:
    """A command that writes its own id and a child's, and goes on forever."""
    script = f'{rest} sleep 1000 & echo "$$ $!" >{pids}.new; mv {pids}.new {pids}; while :; do wait; done'
    return Manifest.of(command=["/bin/sh", "-c", script], timeout=1_000)


async def _found(mesh: Mesh, jobs: Sequence[Scheduled]) -> list[Job]:
    return list((await mesh.jobs.queries.find_all([job.job_id for job in jobs], fresh=True)).values())


def _is_free(job: Job) -> bool:
    """Whether a job waits, and no one has it."""
    return (job.state, job.claimer, job.lease_until_ms, job.failures) == ("pending", None, None, 0)


# --- what it works on ----------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [FILE, *cases_in_soak(MESH)], indirect=True, ids=str)
async def test_handlers_come_from_the_folder_and_commands_are_run_only_with_exec(settings: Settings) -> None:
    async with Mesh.open_command(settings) as mesh:
        (command,) = await mesh.jobs.schedule_all([Manifest.of(command=["echo", "hello"], timeout=60)])
        echoed = await mesh.jobs.schedule(_ECHO, {"n": 1})
        registered = await mesh.jobs.schedule("example.registered.here")
        more = (*_HANDLERS, "--handlers", "my_handlers:register", "--kinds", "example.*")
        async with worker_run(settings, *more, "--concurrency", "3") as worker:
            assert (await mesh.jobs.wait(echoed, timeout=PATIENCE_S)).state == "succeeded"
            assert (await mesh.jobs.wait(registered, timeout=PATIENCE_S)).state == "succeeded"
            assert "example.echo" in worker.kinds
            assert "exec" not in worker.kinds
            assert worker.room == "3"
            (node,) = await mesh.nodes.live_nodes_from_db()
            assert (node.node_id, node.capacity) == (worker.node_id, 3)
            assert (await worker.stopped())[0] == 0
        untouched = await mesh.jobs.find(command)
        assert (untouched.state, untouched.claim_token) == ("pending", 0)
        async with worker_run(settings, *_HANDLERS, "--exec", "--kinds", "exec") as worker:
            assert (await mesh.jobs.wait(command, timeout=PATIENCE_S)).state == "succeeded"
            assert worker.kinds == "exec"
            assert (await worker.stopped(signal.SIGINT))[0] == 0


async def test_the_jobs_of_an_app_come_from_the_folder(on_file: Settings, tmp_path: Path) -> None:
    for app, name in ((example_app, "my_app"), (example_sync_app, "my_sync_app")):
        shutil.copy(str(app.__file__), tmp_path / f"{name}.py")
    total = example_app.Total
    async with Mesh.open_command(on_file) as mesh:
        count, forward = example_app.count.on(mesh), example_app.forward.on(mesh)
        async with worker_run(on_file, "--app", "my_app:mesh", "--app", "my_sync_app:mesh") as worker:
            counted, forwarded = (
                await count.schedule("to be", factor=3),
                await forward.schedule("or not to be"),
            )
            assert await counted.result(timeout=PATIENCE_S) == total(6, "example.count")
            again = count.handle(await forwarded.result(timeout=PATIENCE_S))
            assert await again.result(timeout=PATIENCE_S) == total(8, "example.count")
            relayed = await mesh.jobs.schedule("example.relay", {"number": 4})
            doubled = await mesh.jobs.result(relayed, timeout=PATIENCE_S)
            assert await mesh.jobs.result(doubled, timeout=PATIENCE_S) == 10
            wrong = await mesh.jobs.schedule("example.count", {"txt": "to be"})
            reason = (await mesh.jobs.wait(wrong, timeout=PATIENCE_S)).reason
            assert reason is not None
            assert reason.startswith("bad_arguments: example.count has no parameter txt; argument text of")
            rules = {each.kind: each.max_running for each in await mesh.job_kinds.listed()}
            assert rules == {"example.forward": 3}
            assert (await worker.stopped())[0] == 0


async def test_a_program_that_is_not_allowed_is_not_run(on_file: Settings, tmp_path: Path) -> None:
    async with Mesh.open_command(on_file) as mesh:
        allowed, refused = await mesh.jobs.schedule_all(
            [
                Manifest.of(command=["echo"], timeout=60, max_attempts=1),
                Manifest.of(command=["touch", str(tmp_path / "made")], timeout=60, max_attempts=1),
            ]
        )
        async with worker_run(on_file, "--exec", "--exec-allow", "echo", "--exec-allow", "cat") as worker:
            assert (await mesh.jobs.wait(allowed, timeout=PATIENCE_S)).state == "succeeded"
            ended = await mesh.jobs.wait(refused, timeout=PATIENCE_S)
            assert (ended.state, "is not allowed" in str(ended.reason)) == ("failed", True)
            assert (await worker.stopped())[0] == 0
    assert not (tmp_path / "made").exists()


async def test_two_workers_in_a_folder_are_two_nodes_and_do_each_job_once(on_file: Settings) -> None:
    options = (*_HANDLERS, "--concurrency", "2", "--grace", "100ms")
    async with (
        Mesh.open_command(on_file) as mesh,
        worker_run(on_file, *options) as one,
        worker_run(on_file, *options) as two,
    ):
        jobs = await mesh.jobs.schedule_all([Manifest.of(kind=_ECHO, payload=each) for each in range(60)])
        await _until(mesh, lambda counts: counts[_ECHO].get("succeeded") == len(jobs))
        assert {job.attempts for job in await _found(mesh, jobs)} == {1}
        endless = await mesh.jobs.schedule_all(
            [Manifest.of(kind="example.wait", payload=n) for n in range(4)]
        )
        await _until(mesh, lambda counts: counts["example.wait"].get("running") == 4)
        claimers = sorted(str(job.claimer) for job in await _found(mesh, endless))
        assert claimers == sorted([one.node_id, two.node_id] * 2)
        assert one.node_id != two.node_id
        assert [(await each.stopped())[0] for each in (one, two)] == [0, 0]


# --- how it ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "number"),
    [
        (FILE, signal.SIGINT),
        (MESH, signal.SIGTERM),
        *in_soak((FILE, signal.SIGTERM), (MESH, signal.SIGINT)),
    ],
    indirect=["settings"],
    ids=str,
)
@pytest.mark.soak
async def test_a_signal_under_load_leaves_every_job_ended_or_free(
    settings: Settings, tmp_path: Path, number: signal.Signals
) -> None:
    pids = tmp_path / "pids"
    async with Mesh.open_command(settings) as mesh:
        first = [_command(pids), *(Manifest.of(kind=f"example.{kind}") for kind in ("wait", "stuck"))]
        urgent = [each.model_copy(update={"priority": 3}) for each in first]
        plain = [Manifest.of(kind=_ECHO, payload=each) for each in range(_JOBS)]
        jobs = await mesh.jobs.schedule_all([*urgent, *plain])
        async with worker_run(settings, *_HANDLERS, "--exec", "--grace", "100ms") as worker:
            await worker.meet(pids)
            await _until(mesh, lambda counts: counts[_ECHO].get("succeeded", 0) >= _ENOUGH)
            code, said = await worker.stopped(number)
            assert (code, "Traceback" in said) == (0, False), said
            assert members(worker.run.group) == set()
        found = await _found(mesh, jobs)
        endless = [job for job in found if job.kind != _ECHO]
        assert [(job.attempts, _is_free(job)) for job in endless] == [(1, True)] * len(first)
        echoes = [job for job in found if job.kind == _ECHO]
        assert {job.state for job in echoes} <= {"succeeded", "pending"}
        assert all(_is_free(job) for job in echoes if job.state == "pending")
        node = await mesh.nodes.find(worker.node_id)
        assert node is not None
        assert node.state is NodeState.LEFT


async def test_what_ends_within_the_grace_is_finished(on_file: Settings, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    async with Mesh.open_command(on_file) as mesh:
        script = f"echo begun >{tmp_path}/begun; read -r _ <{tmp_path}/go"
        (job,) = await mesh.jobs.schedule_all([Manifest.of(command=["/bin/sh", "-c", script], timeout=60)])
        async with worker_run(on_file, "--exec", "--grace", "1m") as worker:
            await _until(mesh, lambda counts: counts["exec"].get("running") == 1)
            worker.send(signal.SIGTERM)
            await worker.said("draining: ")
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.to_thread((tmp_path / "go").write_text, "now\n")
            assert (await worker.run.ended())[0] == 0
        ended = await mesh.jobs.find(job)
        assert (ended.state, ended.attempts) == ("succeeded", 1)


async def test_a_second_signal_ends_it_at_once_and_its_commands_with_it(
    on_file: Settings, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    async with Mesh.open_command(on_file) as mesh:
        (job,) = await mesh.jobs.schedule_all([_command(pids, "trap '' TERM;")])
        async with worker_run(on_file, "--exec", "--grace", "1h") as worker:
            await worker.meet(pids)
            worker.send(signal.SIGTERM)
            await worker.said("draining: ")
            assert (await worker.stopped(signal.SIGINT))[0] == 128 + signal.SIGINT
            await worker.run.gone()
        assert (await mesh.jobs.find(job)).claimer == worker.node_id  # until its lease is over


async def test_a_handler_that_blocks_the_process_can_not_keep_it_from_a_second_signal(
    on_file: Settings,
) -> None:
    async with Mesh.open_command(on_file) as mesh:
        await mesh.jobs.schedule("example.block")
        async with worker_run(on_file, *_HANDLERS, "--grace", "1h") as worker:
            await _until(mesh, lambda counts: counts["example.block"].get("running") == 1)
            worker.send(signal.SIGTERM)
            code, _ = await worker.stopped(signal.SIGINT)
            assert code in (128 + signal.SIGTERM, 128 + signal.SIGINT)  # both may come at once


@pytest.mark.soak
@only_at_full_length
async def test_a_handler_that_blocks_the_process_is_cut_off_when_its_time_is_over(on_file: Settings) -> None:
    async with Mesh.open_command(on_file) as mesh:
        job = await mesh.jobs.schedule("example.block")
        async with worker_run(on_file, *_HANDLERS, "--grace", "100ms") as worker:
            await _until(mesh, lambda counts: counts["example.block"].get("running") == 1)
            code, said = await worker.stopped()
            assert (code, "shutdown timed out" in said) == (1, True)
        assert (await mesh.jobs.find(job)).claimer == worker.node_id


@pytest.mark.soak
@only_at_full_length
async def test_a_command_that_will_not_end_is_killed_and_its_job_is_free(
    settings: Settings, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    async with Mesh.open_command(settings) as mesh:
        jobs = await mesh.jobs.schedule_all([_command(pids, "trap '' TERM;")])
        async with worker_run(settings, "--exec", "--grace", "100ms") as worker:
            await worker.meet(pids)
            assert (await worker.stopped())[0] == 0
            assert members(worker.run.group) == set()
        assert [_is_free(job) for job in await _found(mesh, jobs)] == [True]


@pytest.mark.soak
@only_at_full_length
async def test_with_the_database_away_it_ends_too_and_the_next_one_says_what_it_gave_back(
    tmp_path: Path, server: Server
) -> None:
    settings = MESH.settings(tmp_path, server, db_deadline="500ms", db_request_timeout="500ms")
    async with Mesh.open_command(settings) as mesh:
        job = await mesh.jobs.schedule("example.wait")
        async with worker_run(settings, *_HANDLERS, "--grace", "100ms") as worker:
            await _until(mesh, lambda counts: counts["example.wait"].get("running") == 1)
            server.kill()
            code, said = await worker.stopped()
            assert (code, "Traceback" in said) == (0, False), said
            await asyncio.to_thread(server.start)
    async with (
        worker_run(settings, *_HANDLERS, "--kinds", _ECHO),
        Mesh.open_command(settings) as mesh,
    ):
        await _until(mesh, lambda counts: counts["example.wait"].get("pending") == 1)
        assert _is_free(await mesh.jobs.find(job))


async def test_kill_9_leaves_no_process_of_a_command(on_file: Settings, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with Mesh.open_command(on_file) as mesh:
        await mesh.jobs.schedule_all([_command(pids, "trap '' TERM;")])
        async with worker_run(on_file, "--exec") as worker:
            await worker.meet(pids)
            assert (await worker.stopped(signal.SIGKILL))[0] == -signal.SIGKILL
            await worker.run.gone()
