"""The blocking mesh: the async one, for scripts, with nothing added and nothing lost on the way."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from tools.fork_server import Program
from tools.forked import Process
from tools.sync_stub import STUB, written
from vox_mesh import JobContext, Script, Statement, load_settings
from vox_mesh.errors import BadSettings, BadValue, LockHeld, LockLost, StoreClosed, WrongThread
from vox_mesh.jobs.kinds import JobKinds
from vox_mesh.model.base.backends import Backend
from vox_mesh.sync import ManualClock, Mesh, MeshHarness, MeshNode, timeout
from vox_mesh.sync.loop_thread import Call, LoopThread

_PATIENCE_S: Final = 30.0
_SHORT_S: Final = 0.05


@pytest.fixture
def mesh() -> Iterator[MeshNode]:
    """A node in memory."""
    with Mesh.open(load_settings(_env_file=None)) as mesh:
        yield mesh


# --- what is awaited blocks -----------------------------------------------------------------------


def test_a_handler_that_is_a_plain_function_does_jobs_and_may_use_the_mesh(mesh: MeshNode) -> None:
    @mesh.worker.handles("words.*")
    def count(context: JobContext) -> int:
        context.run(context.checkpoint({"at": 1}))
        mesh.messages.send("boss", f"counting {context.payload}", sender="counter")
        return len(context.payload.split())

    with mesh.worker.running(concurrency=2):
        job = mesh.jobs.schedule("words.count", "to be or not")
        assert mesh.jobs.wait(job, timeout=_PATIENCE_S).state == "succeeded"
    assert not mesh.worker.is_running
    assert [each.body for each in mesh.messages.inbox("boss")] == ["counting to be or not"]


def test_a_command_beside_the_nodes_blocks_too(tmp_path: Path) -> None:
    settings = load_settings(_env_file=None, enabled=True, http=False, home_dir=tmp_path / "vox")
    with Mesh.open(settings) as node, Mesh.open_command(settings) as command:
        assert [each.node_id for each in command.nodes.all()] == [node.identity.node_id]


def test_phrases_and_beats_are_played_without_await(tmp_path: Path) -> None:
    tempo = tmp_path / "tempo.yaml"
    tempo.write_text("{cluster_id: east, initial_bpm: 600}")
    with Mesh.open(load_settings(_env_file=None, tempo_policy=tempo, agent_id="ada")) as mesh:
        beats = mesh.rhythm.beats()
        first, second = next(beats), next(beats)
        assert second.epoch_ms == first.epoch_ms + 100
        with mesh.rhythm.phrase(task="once") as phrase:
            with phrase.plan():
                phrase.progress(0.5, "half")
            with phrase.work():
                phrase.useful()
        assert phrase.outcome == "done"
        (spent,) = mesh.rhythm.budgets.report("agent:ada")
        assert spent.phrases == 1


def test_an_optimistic_write_is_made_of_what_the_function_returns(mesh: MeshNode) -> None:
    create = "CREATE TABLE pages (name TEXT PRIMARY KEY, hits INTEGER, written_at TEXT)"
    mesh.store.write(Script(Statement(create)))
    for _ in range(2):
        mesh.occ.update("pages", {"name": "a"}, lambda row: {"hits": row["hits"] + 1 if row else 1})
    row = mesh.occ.read("pages", {"name": "a"})
    assert row is not None
    assert row["hits"] == 2


def test_what_need_not_be_awaited_is_what_it_is(mesh: MeshNode) -> None:
    mesh.presence.activity.text = "indexing"
    mesh.run_once()
    (node,) = mesh.nodes.live_nodes_from_db()
    assert (node.node_id, node.activity) == (mesh.identity.node_id, "indexing")
    assert mesh.jobs == mesh.jobs
    others: list[object] = [mesh.locks, mesh.messages]
    assert mesh.jobs not in others
    assert {"schedule", "wait"} <= set(dir(mesh.jobs))
    with pytest.raises(AttributeError, match="has no public attribute '_store'"):
        mesh.jobs._store  # type: ignore[attr-defined]  # noqa: B018


def test_several_threads_use_one_mesh(mesh: MeshNode) -> None:
    with ThreadPoolExecutor(4) as threads:
        jobs = list(threads.map(lambda number: mesh.jobs.schedule("work", number), range(40)))
    assert len({each.job_id for each in jobs}) == 40
    assert mesh.jobs.queries.counts()["work"]["pending"] == 40


# --- blocks and loops -----------------------------------------------------------------------------


def test_a_lock_is_held_for_the_block_and_what_the_block_raises_comes_out_unchanged(mesh: MeshNode) -> None:
    broken = KeyError("mine")

    def work() -> None:
        with mesh.locks.hold("release", agent="a"):
            with pytest.raises(LockHeld):
                mesh.locks.acquire("release", agent="b")
            raise broken

    with pytest.raises(KeyError) as raised:
        work()
    assert raised.value is broken
    assert {Path(frame.filename).name for frame in traceback.extract_tb(raised.tb)} == {"test_sync.py"}
    assert mesh.locks.acquire("release", agent="b").holder_agent == "b"


def test_a_block_that_can_not_be_entered_raises_why(mesh: MeshNode) -> None:
    mesh.locks.acquire("release", agent="a")
    with pytest.raises(LockHeld, match="held by a"), mesh.locks.hold("release", agent="b"):
        raise AssertionError("it is not held")
    with pytest.raises(BadValue, match="no handlers and runs no commands"), mesh.worker.running():
        raise AssertionError("there are no handlers")


def test_a_block_is_entered_once(mesh: MeshNode) -> None:
    block, inside, together = mesh.locks.hold("release"), [], threading.Barrier(2)

    def work() -> None:
        with block:
            inside.append(mesh.locks.holders())

    def work_together() -> None:
        together.wait(_PATIENCE_S)
        work()

    with ThreadPoolExecutor(2) as threads:
        ended = [threads.submit(work_together).exception for _ in range(2)]
        errors = [error for each in ended if (error := each(_PATIENCE_S)) is not None]
    assert [(type(error), str(error)) for error in errors] == [(BadValue, "block can be entered only once")]
    with pytest.raises(BadValue, match="entered only once"):
        work()
    assert [len(holders) for holders in inside] == [1]
    assert mesh.locks.holders() == []


def test_whatever_ends_a_block_comes_out_of_it_unchanged(mesh: MeshNode) -> None:
    for kind in (StopIteration, StopAsyncIteration, GeneratorExit, asyncio.CancelledError):
        with pytest.raises(kind, match="mine"), mesh.locks.hold("release"):
            raise kind("mine")
        assert mesh.locks.holders() == []


def test_a_block_that_is_left_in_the_loop_as_by_the_garbage_collector_is_left(mesh: MeshNode) -> None:
    mesh.store.write(Script(Statement("CREATE TABLE pages (name TEXT PRIMARY KEY, written_at TEXT)")))

    def held() -> Generator[None, None, None]:
        with mesh.locks.hold("release", agent="a"):
            yield

    def collect(_: object) -> dict[str, str]:
        left_over.close()
        return {"name": "a"}

    left_over = held()
    next(left_over)
    mesh.occ.update("pages", {"name": "a"}, collect)
    assert mesh.locks.acquire("release", agent="b", wait=_PATIENCE_S).holder_agent == "b"


def test_what_a_call_raises_says_where_it_came_from(mesh: MeshNode) -> None:
    with pytest.raises(BadValue) as raised:
        mesh.jobs.schedule("no such kind!")
    names = [Path(frame.filename).name for frame in traceback.extract_tb(raised.tb)]
    assert names[0] == "test_sync.py"
    assert "jobs.py" in names
    assert len([name for name in names if name in ("blocking.py", "loop_thread.py")]) <= 5


def test_a_loop_that_is_left_gives_back_what_it_had_not_come_to(mesh: MeshNode) -> None:
    for sender in ("one", "two"):
        mesh.messages.send("inbox", sender, sender=sender)
    for message in mesh.messages.receive("inbox"):
        mesh.messages.ack(message)
        break
    with timeout(_PATIENCE_S):
        left = next(mesh.messages.receive("inbox"))
    assert {message.body, left.body} == {"one", "two"}


def test_a_loop_that_is_left_has_acknowledged_what_it_came_to(mesh: MeshNode) -> None:
    sent = [mesh.messages.send("inbox", number, sender="one") for number in range(3)]
    for message in mesh.messages.receive("inbox"):
        assert mesh.messages.ack(message) is False, "it is queued"
        if message.body == 1:
            break
    states = [mesh.messages.queries.get(each.message_uuid).state for each in sent]
    assert states[:2] == ["acked", "acked"]


def test_a_generator_may_be_closed_and_ends_with_its_source(mesh: MeshNode) -> None:
    job = mesh.jobs.schedule("work")
    with closing(mesh.jobs.watch(job)) as states:
        assert next(states).state == "pending"
        mesh.jobs.abort(job)
        assert [each.state for each in states] == ["aborted"]
    with pytest.raises(StopIteration):
        next(states)


# --- a lock that is lost --------------------------------------------------------------------------


def test_the_next_call_under_a_lost_lock_says_so(vox_mesh_harness: MeshHarness) -> None:
    node, reached = vox_mesh_harness.node("a"), []

    def work() -> None:
        with node.locks.hold("release"):
            vox_mesh_harness.kill("a")
            reached.append("a call")
            node.nodes.all()
            reached.append("the end")

    with pytest.raises(LockLost):
        work()
    assert reached == ["a call"]


def test_who_has_lost_a_lock_of_one_node_may_still_call_others(
    vox_mesh_harness: MeshHarness, vox_manual_clock: ManualClock
) -> None:
    first, reached = vox_mesh_harness.node("a"), []

    def work() -> None:
        with first.locks.hold("release"):
            vox_mesh_harness.kill("a")
            vox_manual_clock.advance("10m")
            second = vox_mesh_harness.node("b")
            with second.locks.hold("release") as lock:
                assert next(second.locks.watch())[0].fence_token == lock.fence_token
            reached.append("the end")

    with pytest.raises(LockLost):
        work()
    assert reached == ["the end"]


def test_a_lock_that_was_over_before_the_block_is_reported_at_its_end(
    vox_mesh_harness: MeshHarness, vox_manual_clock: ManualClock
) -> None:
    first, second = vox_mesh_harness.node("a"), vox_mesh_harness.node("b")

    def work() -> None:
        with first.locks.hold("release", ttl=60):
            vox_manual_clock.advance("2h")
            second.locks.acquire("release")

    with pytest.raises(LockLost):
        work()
    assert [holder.holder_node for holder in second.locks.holders()] == ["b"]


def test_the_end_of_a_block_says_that_its_lock_was_lost(vox_mesh_harness: MeshHarness) -> None:
    node = vox_mesh_harness.node("a")

    def work() -> None:
        with node.locks.hold("release"):
            vox_mesh_harness.kill("a")

    with pytest.raises(LockLost):
        work()


# --- deadlines ------------------------------------------------------------------------------------


def test_deadlines_are_those_of_the_async_mesh(mesh: MeshNode) -> None:
    job = mesh.jobs.schedule("work")
    with pytest.raises(TimeoutError):
        mesh.jobs.wait(job, timeout=_SHORT_S)


def test_a_deadline_around_several_calls_cancels_the_one_under_way(mesh: MeshNode) -> None:
    with pytest.raises(TimeoutError), timeout(_PATIENCE_S), timeout(_SHORT_S), timeout(None):
        next(mesh.messages.receive("unknown"))
    assert mesh.messages.inbox("unknown") == []  # and there is none any more


def test_what_tidies_up_has_the_time_it_needs(mesh: MeshNode) -> None:
    def work() -> None:
        with timeout(_SHORT_S), mesh.locks.hold("release", agent="a"):
            next(mesh.messages.receive("unknown"))

    with pytest.raises(TimeoutError):
        work()
    assert mesh.locks.holders() == []


# --- where it can't be used -----------------------------------------------------------------------


def test_a_call_in_the_loop_is_refused_and_stops_nothing(mesh: MeshNode) -> None:
    @mesh.worker.handles("work")
    async def work(context: JobContext) -> None:
        mesh.jobs.schedule("more")

    with mesh.worker.running():
        job = mesh.jobs.wait(mesh.jobs.schedule("work", max_attempts=1), timeout=_PATIENCE_S)
    assert job.state == "failed"
    assert job.reason is not None
    assert "would stop the loop; call it from a plain function" in job.reason


def test_a_function_that_is_called_in_the_loop_can_not_block_it(mesh: MeshNode) -> None:
    mesh.store.write(Script(Statement("CREATE TABLE pages (name TEXT PRIMARY KEY, written_at TEXT)")))
    with pytest.raises(WrongThread):
        mesh.occ.update("pages", {"name": "a"}, lambda _: {"name": mesh.nodes.all()[0].node_id})
    assert mesh.occ.read("pages", {"name": "a"}) is None


def test_after_the_end_there_is_one_clear_error() -> None:
    with Mesh.open(load_settings(_env_file=None)) as mesh:
        left_over = mesh.messages.receive("a")
    for use in (mesh.nodes.all, lambda: next(left_over), lambda: mesh.locks.hold("x").__enter__()):
        with pytest.raises(StoreClosed, match="mesh is closed") as raised:
            use()
        assert raised.value.hint == "use it inside `with Mesh.open(...) as mesh:`"
    assert "vox-mesh-sync" not in {thread.name for thread in threading.enumerate()}


def test_a_call_of_another_thread_ends_with_the_mesh() -> None:
    with ThreadPoolExecutor(1) as threads:
        with Mesh.open(load_settings(_env_file=None)) as mesh:
            states = mesh.jobs.watch(mesh.jobs.schedule("work"))
            assert next(states).state == "pending"
            waiting = threads.submit(next, states)
            mesh.nodes.all()
        with pytest.raises(StoreClosed):
            waiting.result(_PATIENCE_S)


def test_ctrl_c_before_a_call_waits_cancels_what_has_begun(
    mesh: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = mesh.messages.receive("unused")
    waiting = Call.wait_for

    def interrupted(call: Call, *_: object, limited: bool = True) -> None:
        monkeypatch.setattr(Call, "wait_for", waiting)
        raise KeyboardInterrupt

    monkeypatch.setattr(Call, "wait_for", interrupted)
    with pytest.raises(KeyboardInterrupt) as raised:
        next(messages)
    assert raised.value.__context__ is None  # the messages were closed, and that was no error
    held = mesh.locks.acquire("x")
    monkeypatch.setattr(Call, "wait_for", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mesh.locks.acquire("x", wait=_PATIENCE_S)
    mesh.locks.release(held)
    assert mesh.locks.holders() == []  # no one waits for it any more


def test_ctrl_c_at_any_point_of_a_call_ends_it_and_harms_no_other() -> None:
    with LoopThread() as loop:
        for point in count():
            passed = count()

            def interrupt(*_: object, passed: Iterator[int] = passed, point: int = point) -> Any:
                if next(passed) == point:
                    sys.settrace(None)
                    raise KeyboardInterrupt
                return interrupt

            sys.settrace(interrupt)
            try:
                loop.run(lambda: asyncio.sleep(0.01), None)
                break  # it ended before that point
            except KeyboardInterrupt:
                assert loop.run(_one, None) == 1
            finally:
                sys.settrace(None)
        assert point > 20


async def _one() -> int:
    return 1


def test_a_service_is_created_in_the_loop(mesh: MeshNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in an import of this thread would leave the lock of a module taken, and the loop waiting."""
    creators = []
    create = JobKinds.__init__

    def watched(kinds: JobKinds, *args: Any, **options: Any) -> None:
        creators.append(threading.current_thread().name)
        create(kinds, *args, **options)

    monkeypatch.setattr(JobKinds, "__init__", watched)
    assert mesh.job_kinds == mesh.job_kinds
    assert creators == ["vox-mesh-sync"]


def test_where_there_is_no_mesh_only_one_that_was_asked_for_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("VOX_MESH_ENABLED", "VOX_MESH_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with pytest.raises(BadSettings, match="this folder or repository has none") as refused, Mesh.open():
        pass
    assert "run `vox-mesh init`" in refused.value.line
    with Mesh.open(load_settings()) as mesh:
        assert mesh.store.backend is Backend.MEMORY
    monkeypatch.setenv("VOX_MESH_ENABLED", "0")
    with Mesh.open() as mesh:
        assert mesh.store.backend is Backend.MEMORY


def in_process(verb: str, folder: Path) -> Process:
    """A script on the file home."""
    env = {**os.environ, "VOX_MESH_ENABLED": "1", "VOX_MESH_HTTP": "0", "VOX_MESH_HOME": str(folder / "vox")}
    env["VOX_DB_PATH"] = str(folder / "mesh.db")
    return Process(Program((verb,), env, module="tests.support.nodes.sync_programs", folder=str(folder)))


def test_ctrl_c_ends_the_call_under_way_lets_go_of_locks_and_leaves(tmp_path: Path) -> None:
    with in_process("ctrl_c", tmp_path) as script:
        assert script.stdout.readline() == "waiting\n"
        os.kill(script.pid, signal.SIGINT)
        _, err = script.communicate(_PATIENCE_S)
    assert script.returncode != 0, err
    assert err.rstrip().endswith("KeyboardInterrupt")
    settings = load_settings(
        _env_file=None, enabled=True, home_dir=tmp_path / "vox", db_path=tmp_path / "mesh.db", http=False
    )
    with Mesh.open_command(settings) as command:
        assert command.locks.holders() == []
        assert [node.state for node in command.nodes.all()] == ["left"]


def test_a_fork_is_notified_that_the_mesh_is_not_its_own_and_harms_nothing(tmp_path: Path) -> None:
    with in_process("fork", tmp_path) as script:
        out, err = script.communicate(_PATIENCE_S)
    assert script.returncode == 0, err
    answer, of_parent = out.splitlines()
    assert answer.startswith("store_closed: mesh was opened by process")
    assert answer.endswith("open a mesh in this process")
    assert of_parent == "0 1"


# --- types ----------------------------------------------------------------------------------------


def test_the_types_are_those_of_the_async_mesh() -> None:
    gc.collect()  # a finalizer that logs while a source is parsed makes Python 3.11 fail
    assert STUB.read_text() == written(), "run: python -m tools.sync_stub"
