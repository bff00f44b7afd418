"""Events: a listener gets every log entry once, and the state of everything else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import orjson
import pytest

from tests.support.jobs.staging import end, schedule
from tests.support.messages.relaying import TOKEN, address_of, assert_problem, until
from tests.support.nodes.serving import READ_TOKEN
from tests.support.nodes.shared_mesh import SharedMesh
from tests.support.rhythm.grounds import MovableClock, player
from vox_mesh import JobContext
from vox_mesh.http import admission
from vox_mesh.http.events import feeds
from vox_mesh.http.events import stream as events
from vox_mesh.mesh import Mesh
from vox_mesh.model.jobs.records import JobState
from vox_mesh.model.rhythm.plan import BeatFrame
from vox_mesh.model.rhythm.policy import TempoPolicy
from vox_mesh.node import MeshNode
from vox_mesh.store.script import Script, Statement

_PATIENCE_S: Final = 30.0


class Event(NamedTuple):
    """An event as a listener has it."""

    name: str
    data: Any
    id: int | None


class Listener:
    """Reads a stream of events."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()

    async def next(self, *names: str) -> Event:
        """The next event, or the next with one of these names."""
        said: dict[str, str] = {}
        async with asyncio.timeout(_PATIENCE_S):
            async for line in self._lines:
                if line.startswith(":"):
                    continue
                if line:
                    name, _, value = line.partition(": ")
                    said[name] = value
                elif said:
                    event = Event(
                        said["event"], orjson.loads(said["data"]), int(said["id"]) if "id" in said else None
                    )
                    if not names or event.name in names:
                        return event
                    said = {}
        raise EOFError

    async def rest(self) -> None:
        """Wait for the end of the stream."""
        async with asyncio.timeout(_PATIENCE_S):
            async for _ in self._lines:
                pass


@asynccontextmanager
async def _listening(
    node: MeshNode, token: str = READ_TOKEN, topics: str | None = None, **headers: str
) -> AsyncIterator[Listener]:
    query = {} if topics is None else {"topics": topics}
    headers = {"Authorization": f"Bearer {token}", **headers}
    async with (
        httpx.AsyncClient(base_url=address_of(node), timeout=_PATIENCE_S) as client,
        client.stream("GET", events.PATH, headers=headers, params=query) as response,
    ):
        assert response.status_code == 200
        assert response.headers["Content-Type"] == "text/event-stream"
        yield Listener(response)


@pytest.fixture
async def node(village: SharedMesh) -> AsyncIterator[MeshNode]:
    """A node that serves, and ticks only when it is asked to."""
    async with Mesh.open(village.settings("ann", token=TOKEN, read_token=READ_TOKEN)) as node:
        yield node


async def test_what_is_in_the_log_comes_once_and_anyone_who_comes_again_goes_on_from_there(
    node: MeshNode,
) -> None:
    jobs = [await node.jobs.schedule("a.kind", {"n": n}) for n in range(3)]
    async with _listening(node, **{events.LAST_ID: "0"}) as listener:
        first = await listener.next("role")
        assert first.data["kind"] == "InitialiseMesh"
        seen = [await listener.next("job") for _ in range(2)]
    async with _listening(node, **{events.LAST_ID: str(seen[-1].id)}) as listener:
        seen.append(await listener.next("job"))
        jobs.append(await node.jobs.schedule("a.kind", {"n": 3}))
        seen.append(await listener.next("job"))
    document = [event.data["payload"]["jobs"][0]["job_id"] for event in seen]
    assert document == [job.job_id for job in jobs]
    ids = [event.id for event in (first, *seen)]
    assert ids == sorted({each for each in ids if each is not None})


async def test_without_an_id_only_what_is_new_comes(node: MeshNode) -> None:
    await node.jobs.schedule("old.kind")
    async with _listening(node) as listener:
        await listener.next("reset")
        new = await node.jobs.schedule("new.kind")
        event = await listener.next("job")
    assert event.data["payload"]["jobs"][0]["job_id"] == new.job_id


async def test_all_else_is_reported_unchanged_first_and_then_when_it_changes(node: MeshNode) -> None:
    held = await node.locks.acquire("task:1", agent="ann")
    async with _listening(node) as listener:
        state = await listener.next()
        assert (state.name, state.id) == ("reset", None)
        assert [each["node_id"] for each in state.data["nodes"]] == ["ann"]
        assert [each["lock_key"] for each in state.data["locks"]] == ["task:1"]
        assert (state.data["messages"]["unread"], state.data["conflicts"]) == (0, [])
        await node.locks.release(held)
        assert (await listener.next("locks")).data == []
        await node.messages.send("ben", "hello", sender="ann")
        mail = (await listener.next("messages")).data
        assert (mail["unread"], len(mail["messages"])) == (1, 1)
        node.presence.activity.text = "thinking"
        await node.run_once()
        (ann,) = (await listener.next("nodes")).data
        assert ann["activity"] == "thinking"


async def test_roles_and_conflicts_are_reported_by_their_names(node: MeshNode) -> None:
    async with _listening(node) as listener:
        await node.roles.route_kind("a.kind", "ann")
        event = await listener.next("role")
        assert (event.data["kind"], event.data["accepted"]) == ("RouteKind", True)


async def test_beats_come_when_they_begin_after_the_one_of_now(village: SharedMesh, tmp_path: Path) -> None:
    tempo = tmp_path / "tempo.yaml"
    tempo.write_text("{cluster_id: east, initial_bpm: 600, bar_len_beats: 4}")
    settings = village.settings("ann", token=TOKEN, read_token=READ_TOKEN, tempo_policy=tempo)
    async with Mesh.open(settings) as node, _listening(node, topics="beats") as listener:
        state = await listener.next()
        assert (state.name, [*state.data]) == ("reset", ["beats"])
        frames = [BeatFrame.parse((await listener.next()).data) for _ in range(6)]
    assert [frame.epoch_ms - frames[0].epoch_ms for frame in frames] == [100 * beat for beat in range(6)]
    assert frames[0].epoch_ms > BeatFrame.parse(state.data["beats"]).epoch_ms
    assert {frame.cluster_id for frame in frames} == {"east"}


async def test_reports_and_tempos_are_reported_with_their_beats_to_who_asks_for_them(node: MeshNode) -> None:
    async with _listening(node, topics="report,tempo") as listener:
        assert (await listener.next()).data == {"report": None}
        await node.messages.send("ben", "hello", sender="ann")  # of which nothing is reported here
        hand = MovableClock()
        ann = player(node, hand)
        await ann.say("ada", "write", "done")
        hand.to(1, 3)
        (made,) = await ann.bar_reporter.roll_up_due()
        report = await listener.next()
        assert (report.name, report.data["window_id"]) == ("report", made.window_id)
        assert report.data["kpis"]["eta"] == 1.0
        await node.rhythm.policies.set(TempoPolicy.built_in("east"))
        op = await listener.next()
        assert (op.name, op.data["kind"]) == ("tempo", "SetTempo")
        assert op.data["window"] == node.rhythm.stamp(op.data["hlc"]).window


async def test_a_topic_that_is_none_is_refused(node: MeshNode) -> None:
    headers = {"Authorization": f"Bearer {READ_TOKEN}"}
    async with httpx.AsyncClient(base_url=address_of(node)) as client:
        answer = await client.get(events.PATH, headers=headers, params={"topics": "beats,weather"})
    assert_problem(answer, 422, "bad_query")


async def test_one_that_is_ahead_of_the_log_is_notified_where_it_ends_and_hears_what_comes(
    node: MeshNode,
) -> None:
    last_id = await node.oplog.last_id()
    async with _listening(node, **{events.LAST_ID: "5000"}) as listener:
        assert (await listener.next("reset")).id == last_id
        new = await node.jobs.schedule("a.kind")
        event = await listener.next("job")
    assert event.data["payload"]["jobs"][0]["job_id"] == new.job_id


async def test_all_who_listen_are_notified_by_one_look(node: MeshNode) -> None:
    async with _listening(node) as first, _listening(node) as second:
        await first.next("reset")
        await second.next("reset")
        looking = [task for task in asyncio.all_tasks() if task.get_name() == "vox-mesh-state-feed"]
        assert len(looking) == 1
        await node.messages.send("ben", "hello", sender="ann")
        assert (await first.next("messages")).data["unread"] == 1
        assert (await second.next("messages")).data["unread"] == 1


async def test_a_node_that_ends_ends_its_streams(village: SharedMesh) -> None:
    settings = village.settings("ann", token=TOKEN, read_token=READ_TOKEN)
    async with Mesh.open(settings) as node, _listening(node) as listener:
        await listener.next("reset")
        await node.close()
        await listener.rest()


@pytest.mark.parametrize("said", ["x", "-1", "9" * 19, "0" * 20 + "9" * 5_000, "1.5", "٣"])
async def test_an_id_that_is_none_is_refused(node: MeshNode, said: str) -> None:
    headers = {"Authorization": f"Bearer {READ_TOKEN}", events.LAST_ID: said.encode()}
    async with httpx.AsyncClient(base_url=address_of(node)) as client:
        assert_problem(await client.get(events.PATH, headers=headers), 422, "bad_event_id")  # type: ignore[arg-type]


async def test_more_listeners_than_there_is_room_for_are_notified(
    node: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = admission.PoolLimits(total=1, each=1)
    monkeypatch.setitem(admission._LIMITS, admission.Load.EVENTS, limits)
    assert node._server is not None
    node._server._events._admission = admission.Admission()
    async with _listening(node) as listener:
        await listener.next("reset")
        async with httpx.AsyncClient(base_url=address_of(node)) as client:
            headers = {"Authorization": f"Bearer {READ_TOKEN}"}
            assert_problem(await client.get(events.PATH, headers=headers), 503, "overloaded")
    front = node._server
    assert front is not None
    await until(lambda: not front._events._streams)  # who has left makes room
    async with _listening(node) as listener:
        await listener.next("reset")


async def test_strangers_are_given_nothing(node: MeshNode) -> None:
    async with httpx.AsyncClient(base_url=address_of(node)) as client:
        assert_problem(await client.get(events.PATH), 401, "token_missing")


async def test_agents_that_come_and_go_are_named(node: MeshNode) -> None:
    async with _listening(node, topics="agents") as listener:
        assert (await listener.next()).name == "reset"
        await node.messages.send("ben", "hello", sender="ann")
        await node.run_once()
        came = await listener.next("agent_seen")
        assert (came.data["agent_id"], came.data["state"]) == ("ann", "alive")
        await node.store.write(Script(Statement("DELETE FROM agent_presence")))
        assert (await listener.next("agent_gone")).data["agent_id"] == "ann"


async def test_each_status_that_changes_is_an_event_and_a_repeated_one_is_none(node: MeshNode) -> None:
    status = node.rhythm.status
    status.claim("ada", "read", "executing")
    await status.flush()
    async with _listening(node, topics="status") as listener:
        (known,) = (await listener.next("reset")).data["status"]
        assert (known["agent_id"], known["state"], known["phase"]) == ("ada", "executing", "work")
        status.claim("ada", "read", "executing")
        status.claim("bob", "write", "waiting", wait_for=["hmmm://thread/x"], notes="\x1b[2J\ndata: 1")
        await status.flush()
        came = await listener.next()
        assert (came.name, came.data["agent_id"], came.data["wait_for"]) == (
            *("status", "bob"),
            ["hmmm://thread/x"],
        )
        assert came.data["notes"] == "\x1b[2J\ndata: 1"
        status.claim("ada", "read", "done")
        await status.flush()
        came = await listener.next()
        assert (came.name, came.data["agent_id"], came.data["state"]) == ("status", "ada", "done")
        await node.store.write(Script(Statement("DELETE FROM status_claims WHERE agent_id = 'bob'")))
        gone = await listener.next()
        assert (gone.name, gone.data["agent_id"], gone.data["task_id"]) == ("status_gone", "bob", "write")


async def test_what_needs_a_person_is_sent_first_and_when_it_changes(node: MeshNode) -> None:
    async with _listening(node, topics="attention") as listener:
        state = (await listener.next("reset")).data["attention"]
        assert (state["items"], set(state["counts"].values())) == ([], {0})
        await node.locks.acquire("task:1", agent="ann")  # which needs none
        await end(node, await schedule(node), JobState.FAILED)
        event = await listener.next()
        (item,) = event.data["items"]
        assert (event.name, item["kind"], event.data["counts"]["failed_job"]) == (
            "attention",
            "failed_job",
            1,
        )
        await node.jobs.retry(item["more"]["job_id"])
        assert (await listener.next()).data["items"] == []


async def test_progress_and_log_lines_of_running_jobs_are_reported(node: MeshNode) -> None:
    job = await node.jobs.schedule("a.kind", {})
    (taken,) = await node.work.take("coder", wait=_PATIENCE_S)
    async with _listening(node, topics="progress") as listener:
        assert (await listener.next("reset")).data == {"progress": []}
        await node.work.progress(job.job_id, taken.claim_token, 0.25, "compiling")
        event = await listener.next()
        assert (event.name, event.data["job_id"]) == ("progress", job.job_id)
        assert (event.data["fraction"], event.data["message"]) == (0.25, "compiling")
        await node.work.log(job.job_id, taken.claim_token, "a line\n")
        assert (await listener.next()).data == {**event.data, "log": event.data["log"] + 1}
    async with _listening(node, topics="progress") as listener:
        (line,) = (await listener.next("reset")).data["progress"]
        assert (line["job_id"], line["fraction"]) == (job.job_id, 0.25)


async def test_stored_steps_of_running_jobs_are_reported(node: MeshNode) -> None:
    may_end = asyncio.Event()

    @node.worker.handles("stepped")
    async def handle(context: JobContext) -> None:
        await context.step("fetch", int)
        await context.step("write", int)
        await may_end.wait()

    async with _listening(node, topics="progress") as listener, node.worker.running():
        await listener.next("reset")
        job = await node.jobs.schedule("stepped")
        event = await listener.next("progress")
        while event.data["steps"] < 2:
            event = await listener.next("progress")
        assert (event.data["job_id"], event.data["fraction"]) == (job.job_id, None)
        may_end.set()


async def test_each_listener_gets_its_topics_whatever_others_have_selected(node: MeshNode) -> None:
    async with _listening(node, topics="locks") as first:
        assert [*(await first.next("reset")).data] == ["locks"]
        async with _listening(node, topics="conflicts,messages,job") as second:
            assert {*(await second.next("reset")).data} == {"conflicts", "messages"}
            await node.messages.send("ben", "hello", sender="ann")
            await node.locks.acquire("task:1", agent="ann")
            assert (await first.next()).name == "locks"
            assert (await second.next()).name == "messages"
    async with _listening(node, topics="job") as third:
        assert (await third.next("reset")).data == {}


async def test_a_listener_that_is_far_behind_misses_nothing_and_gets_nothing_twice(
    node: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "_KEPT_ENTRIES", 2)
    monkeypatch.setattr(feeds, "_PAGE", 3)
    start = await node.oplog.last_id()
    async with _listening(node, topics="job") as here:
        await here.next("reset")
        jobs = [(await node.jobs.schedule("a.kind", {"n": n})).job_id for n in range(10)]
        async with _listening(node, topics="job", **{events.LAST_ID: str(start)}) as late:
            jobs.append((await node.jobs.schedule("a.kind", {"n": 10})).job_id)
            for listener in (here, late):
                heard = [await listener.next("job") for _ in jobs]
                assert [each.data["payload"]["jobs"][0]["job_id"] for each in heard] == jobs


@pytest.mark.parametrize(
    ("took_s", "interval_s"), [(0.0, 0.05), (0.002, 0.05), (0.01, 0.2), (0.04, 0.8), (3.0, 1.0)]
)
def test_the_state_is_read_less_often_the_longer_it_takes(took_s: float, interval_s: float) -> None:
    assert feeds.interval_after(took_s) == pytest.approx(interval_s)
