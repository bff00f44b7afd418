"""Help: what was promised is kept, broken or expired, the asker knows which, and no one waits forever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.messages.messaging import PATIENCE_S, crowd_on, database_ms
from tools.homes import FILE, MESH_REPLICA
from tools.sqld import Server
from vox_mesh import Mesh, Message, Statement
from vox_mesh.errors import BadValue, MessageTaken, NotHelper, NotKnown, ThreadClosed
from vox_mesh.model.messages.records import THREAD
from vox_mesh.model.rhythm.plan import Plan, PlanEntry
from vox_mesh.model.rhythm.policy import TempoPolicy
from vox_mesh.model.rhythm.promises import HelpPromise, HelpState, HelpThread, thread_of, verdict
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies, MeshClock
from vox_mesh.rhythm import help as helping
from vox_mesh.rhythm.context import RhythmContext, Times
from vox_mesh.rhythm.help import ANSWER, EXPIRED, PROMISE, REQUEST, WITHDRAWN, Help
from vox_mesh.store.schema.statements import named
from vox_mesh.testing import MeshHarness

BPM: Final = 12.0
BEAT_S: Final = 5
ROUNDS: Final = 6
ULID: Final = "01JD00000000000000000000HE"


def help_of(node: Mesh, bpm: float = BPM) -> Help:
    """The help of a node that goes by this tempo."""
    policy = TempoPolicy.of_document({"cluster_id": "home", "initial_bpm": bpm})
    times, plan = Times(node.clock), Plan(PlanEntry.of(policy))
    return Help(
        RhythmContext(node.store, node._writer, node.clock, times, node.permits, None, plan), node.messages
    )


class Two:
    """One who asks, on a node, and one who helps, on another."""

    def __init__(self, harness: MeshHarness, asking: MeshNode, helping: MeshNode) -> None:
        self.harness = harness
        self.asking, self.helping = asking, helping
        self.asker, self.helper = help_of(asking), help_of(helping)

    async def asked(self, **options: Any) -> tuple[HelpThread, Message]:
        """A thread, and the request as the helper received it."""
        thread = await self.asker.ask("helper", {"what": "?"}, **options)
        (request,) = await self.helping.messages.poll_inbox_from_db("helper")
        return thread, request

    async def advance(self, beats: float) -> None:
        """Let this many beats pass."""
        await self.harness.clock.advance(f"{round(beats * BEAT_S * 1_000)}ms")
        for side in (self.asker, self.helper):
            side._context.times.notify_clock_set()

    async def inbox(self) -> list[Message]:
        """What was said to the asker."""
        return await self.asking.messages.poll_inbox_from_db("asker")

    async def state(self, thread: HelpThread) -> str:
        """What came of a thread so far."""
        return (await self.asker.state(thread)).state

    async def counts(self) -> tuple[int, ...]:
        """What came of all."""
        return await self.helper.counts(0, await database_ms(self.helping) + 1)


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    """Two nodes in a harness."""
    async with MeshHarness() as harness:
        yield Two(harness, await harness.node("asker"), await harness.node("helper"))


# --- the rules ------------------------------------------------------------------------------------


@given(st.none() | st.integers(0, 20), st.integers(0, 20), st.none() | st.integers(0, 40))
def test_a_thread_ends_in_one_way_by_its_times(due: int | None, more: int, answered: int | None) -> None:
    closes = (due or 0) + more
    came_to = verdict(due, closes, answered)
    is_answered = answered is not None and answered < closes
    assert (came_to in (HelpState.KEPT, HelpState.BROKEN)) is is_answered
    assert (came_to is HelpState.UNANSWERED) is (not is_answered and due is None)
    if is_answered and due is not None and answered is not None:
        assert (came_to is HelpState.KEPT) is (answered <= due)


def test_a_promise_is_sent_with_the_address_of_its_thread_and_read_with_or_without() -> None:
    promise = HelpPromise(ULID, 2, 0.7, 3, "plan-b")
    sent = promise.document()
    assert sent == {
        "thread_id": THREAD + ULID,
        "promise_beats": 2,
        "confidence": 0.7,
        "fail_after_beats": 3,
        "on_fail": "plan-b",
    }
    assert HelpPromise.parse(sent).document() == sent
    assert HelpPromise.parse(sent | {"thread_id": ULID}) == promise
    assert thread_of(THREAD + ULID) == thread_of(ULID) == ULID


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"promise_beats": 0}, "got 0"),
        ({"promise_beats": True}, "got True"),
        ({"fail_after_beats": 1}, "an integer from 2 to"),
        ({"confidence": 1.1}, "a number from 0 to 1"),
        ({"confidence": True}, "a number from 0 to 1"),
        ({"confidence": float("nan")}, "a number from 0 to 1"),
        ({"on_fail": None}, "on_fail must be a text"),
        ({"thread_id": "hmmm://thread/abc"}, "help thread must be"),
        ({"thread_id": 7}, "help thread must be"),
        ({"beats": 1}, "got 'beats'"),
    ],
)
def test_what_is_no_promise_is_refused(wrong: dict[str, Any], said: str) -> None:
    right = HelpPromise(ULID, 2, 0.7, 3).document()
    with pytest.raises(BadValue) as caught:
        HelpPromise.parse(right | wrong)
    assert said in caught.value.line
    for name in wrong.keys() & right.keys() - {"on_fail"}:
        with pytest.raises(BadValue, match=f"promise must have the field {name}"):
            HelpPromise.parse({key: value for key, value in right.items() if key != name})
    with pytest.raises(BadValue, match="promise must be an object"):
        HelpPromise.parse([])


# --- what comes of it -----------------------------------------------------------------------------


async def test_an_answer_in_time_keeps_the_promise(two: Two) -> None:
    thread, request = await two.asked(task="ucxl://a/b")
    assert (request.msg_type, request.body, request.thread) == (REQUEST, {"what": "?"}, thread.thread_id)
    assert await two.asker.state(thread) == thread, "what asking returned is what is stored"
    assert (thread.asker, thread.task_id, thread.state) == ("asker", "ucxl://a/b", "asked")
    assert [each.asked_of for each in await two.helper.listed()] == ["helper"]
    promised = await two.helper.promise(request, promise_beats=2, confidence=0.7, fail_after_beats=3)
    await two.advance(1)
    waiting = asyncio.create_task(two.asker.wait(thread))
    said = await two.helper.answer(request, {"it": 42})
    async with asyncio.timeout(PATIENCE_S):
        answer = await waiting
    assert (answer.message_uuid, answer.body, answer.msg_type) == (said.message_uuid, {"it": 42}, ANSWER)
    assert (answer.reply_to, answer.thread) == (request.message_uuid, thread.thread_id)
    now = await two.asker.state(thread.address)
    assert (now.state, now.helper, now.answer_id) == ("kept", "helper", answer.message_uuid)
    assert (now.promise_beats, now.confidence, now.fail_after_beats) == (2, 0.7, 3)
    assert await two.counts() == (1, 0, 0, 0)
    assert await two.inbox() == [], "who has waited knows all of it"
    assert (await two.asker.wait(thread)).body == {"it": 42}, "and may ask again"
    (result,) = await said_in(two, thread, PROMISE)
    assert (result.receiver_agent, result.body) == ("asker", promised.document())
    assert HelpPromise.parse(result.body).thread_id == thread.address


async def said_in(two: Two, thread: HelpThread, msg_type: str) -> list[Message]:
    """The messages of a type in a thread."""
    listed = await two.asking.messages.queries.listed(thread=thread.thread_id)
    return [message for message in listed if message.msg_type == msg_type]


async def test_a_late_answer_breaks_the_promise_and_arrives_all_the_same(two: Two) -> None:
    thread, request = await two.asked()
    await two.helper.promise(request, promise_beats=1, fail_after_beats=4)
    await two.advance(2)
    await two.helper.answer(thread.address, "late")
    assert await two.state(thread) == "broken"
    assert [(each.msg_type, each.body) for each in await two.inbox()][1:] == [(ANSWER, "late")]
    assert (await two.asker.wait(thread)).body == "late"
    assert await two.counts() == (0, 1, 0, 0)


async def test_an_answer_that_no_one_had_promised_is_help_too(two: Two) -> None:
    thread, request = await two.asked()
    await two.helper.answer(request, "at once")
    assert (await two.asker.wait(thread)).body == "at once"
    assert (await two.asker.state(thread)).helper == "helper"
    assert await two.counts() == (1, 0, 0, 0)


async def test_a_promise_that_is_taken_back_is_broken_and_no_one_waits_for_it(two: Two) -> None:
    thread, request = await two.asked()
    with pytest.raises(NotHelper, match="no promise to withdraw"):
        await two.helper.withdraw(request)
    await two.helper.promise(request, promise_beats=2, fail_after_beats=4, on_fail="plan-b")
    waiting = asyncio.create_task(two.asker.wait(thread))
    await two.helper.withdraw(request, reason="no time")
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(ThreadClosed) as caught:
            await waiting
    assert (caught.value.state, caught.value.on_fail) == ("broken", "plan-b")
    (result,) = await said_in(two, thread, WITHDRAWN)
    assert result.body == {"thread_id": thread.address, "reason": "no time", "on_fail": "plan-b"}
    with pytest.raises(ThreadClosed):
        await two.helper.answer(request, "after all")
    assert await two.counts() == (0, 1, 0, 0)


async def test_a_promise_of_which_nothing_comes_expires_and_the_asker_is_notified_what_to_do(
    two: Two,
) -> None:
    thread, request = await two.asked(task="ucxl://a/b")
    await two.helper.promise(request, promise_beats=2, fail_after_beats=3, on_fail="plan-b")
    waiting = asyncio.create_task(two.asker.wait(thread))
    await two.advance(2.5)
    assert await two.asker.close_due() == 0, "it is late, but still open"
    assert not waiting.done()
    await two.advance(1)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(ThreadClosed, match="the promise expired") as caught:
            await waiting
    assert (caught.value.state, caught.value.on_fail) == ("expired", "plan-b")
    assert "plan-b" in caught.value.hint
    assert await two.helper.close_due() == 0
    (result,) = await said_in(two, thread, EXPIRED)
    assert result.body == {
        "thread_id": thread.address,
        "state": "expired",
        "helper": "helper",
        "task_id": "ucxl://a/b",
        "on_fail": "plan-b",
    }
    ended = await two.asker.state(thread)
    assert ended.ended_ms == ended.closes_ms, "it ended when its time was over, not when that was seen"
    for late in (two.helper.answer(request, "too late"), two.helper.withdraw(request)):
        with pytest.raises(ThreadClosed):
            await late
    assert await said_in(two, thread, ANSWER) == []
    assert await two.counts() == (0, 0, 1, 0)


async def test_a_request_that_no_one_answers_closes_and_is_not_delivered_any_more(two: Two) -> None:
    thread = await two.asker.ask("helper", "?", within_beats=2)
    await two.advance(2)
    assert await two.helping.messages.poll_inbox_from_db("helper") == []
    for late in (
        two.helper.answer(thread.thread_id, "too late"),
        two.helper.promise(thread, promise_beats=1, fail_after_beats=1),
    ):
        with pytest.raises(ThreadClosed) as caught:  # though no one has closed it yet
            await late
        assert caught.value.state == "unanswered"
    assert await two.state(thread) == "asked"
    assert await two.helper.close_due() == 1
    (result,) = await two.inbox()
    assert (result.msg_type, result.body["state"], result.sender_agent) == (EXPIRED, "unanswered", "mesh")
    assert await two.counts() == (0, 0, 0, 1)
    assert await two.helper.counts(0, (await two.asker.state(thread)).closes_ms) == (0, 0, 0, 0)


async def test_without_a_limit_a_promise_is_waited_for_as_long_as_a_bar(two: Two) -> None:
    thread = await two.asker.ask("helper", "?")
    assert thread.closes_ms - thread.asked_ms in range(8 * BEAT_S * 1_000, 8 * BEAT_S * 1_000 + 100)
    for beats in (0, 1.5, 10**9):
        with pytest.raises(BadValue, match="within_beats"):
            await two.asker.ask("helper", "?", within_beats=beats)  # type: ignore[arg-type]


# --- who may --------------------------------------------------------------------------------------


async def test_of_those_who_have_a_role_one_promises_and_only_that_one_answers(two: Two) -> None:
    thread = await two.asker.ask("role:reviewer", "?")
    (request,) = await two.helping.messages.poll_inbox_from_db("helper", roles=["reviewer"])
    promising = [
        two.helper.promise(request, promise_beats=1, fail_after_beats=2, sender=who) for who in "abc"
    ]
    done = await asyncio.gather(*promising, return_exceptions=True)
    assert sorted(type(each).__name__ for each in done) == ["HelpPromise", "NotHelper", "NotHelper"]
    helper = (await two.asker.state(thread)).helper
    assert [isinstance(each, HelpPromise) for each in done].index(True) == "abc".index(helper or "")
    for refused in (two.helper.answer(request, 1, sender="d"), two.helper.withdraw(request, sender="d")):
        with pytest.raises(NotHelper, match=f"{helper} promised first"):
            await refused
    await two.helper.answer(request, 2, sender=helper)
    assert (await two.asker.wait(thread)).body == 2
    assert len(await said_in(two, thread, PROMISE)) == 1, "who was refused has notified no one"


async def test_who_promises_has_acknowledged_the_request(two: Two) -> None:
    thread, request = await two.asked()
    await two.helper.promise(request, promise_beats=1, fail_after_beats=9)
    assert [each.state for each in await said_in(two, thread, REQUEST)] == ["acked"]
    await two.helping.messages.ack(request)  # which may be said again
    receiving = two.helping.messages.receive("helper")
    other = await two.asker.ask("helper", "the next")
    async with asyncio.timeout(PATIENCE_S):
        following = await anext(receiving)
        await two.helper.promise(following, promise_beats=1, fail_after_beats=9)
        await two.asker.ask("helper", "and the one after")
        assert (await anext(receiving)).body == "and the one after", "its pair is free again"
    assert following.thread == other.thread_id
    await receiving.aclose()


async def test_what_is_no_thread_of_help_is_not_known(two: Two) -> None:
    plain = await two.asking.messages.send("other", "hello", sender="asker")
    for said in (
        two.helper.answer(plain, "what?"),
        two.helper.answer(ULID, "what?"),
        two.helper.promise(plain, promise_beats=1, fail_after_beats=1),
    ):
        with pytest.raises(NotKnown):
            await said
    thread, request = await two.asked()
    with pytest.raises(BadValue, match="got someone"):
        await two.helper.answer(request._replace(sender_agent="someone"), "for whom?")
    with pytest.raises(BadValue, match="help thread must be"):
        await two.asker.state("abc")
    assert await two.state(thread) == "asked"


async def test_the_message_and_what_is_written_with_it_are_both_there_or_neither(two: Two) -> None:
    thread, _ = await two.asked()

    def close(_: Message) -> list[Statement]:
        return [Statement(named("help")["withdraw"], (*two.asking.store.mesh_id, thread.thread_id))]

    with pytest.raises(MessageTaken):
        await two.asking.messages.send("other", "another one", key=thread.thread_id, statements=close)
    assert await two.state(thread) == "asked"


async def test_commands_ask_answer_and_wait_too(tmp_path: Path) -> None:
    settings = FILE.settings(tmp_path, None, scope_id="", node_id="worker")
    async with Mesh.open_command(settings) as asking, Mesh.open_command(settings) as helping:
        thread = await help_of(asking).ask("helper", "?", sender="asker")
        (request,) = await helping.messages.poll_inbox_from_db("helper")
        await help_of(helping).promise(request, promise_beats=1, fail_after_beats=2)
        await help_of(helping).answer(request, "!")
        assert (await help_of(asking).wait(thread)).body == "!"
        with pytest.raises(ThreadClosed, match="it was answered"):
            await help_of(helping).answer(request, "!!")


# --- many at once ---------------------------------------------------------------------------------


async def test_many_nodes_that_close_at_the_same_time_tell_each_asker_once(two: Two) -> None:
    third = help_of(await two.harness.node("third"))
    threads = [await two.asker.ask("helper", n, sender=f"s{n}", within_beats=1) for n in range(5)]
    await two.advance(1)
    closed = await asyncio.gather(
        *(each.close_due() for each in (two.asker, two.helper, third) for _ in range(2))
    )
    assert sum(closed) == 5
    result = await two.asking.messages.queries.listed(sender="mesh")
    assert sorted(each.receiver_agent for each in result) == [f"s{n}" for n in range(5)]
    assert {await two.state(thread) for thread in threads} == {"unanswered"}
    assert await two.counts() == (0, 0, 0, 5)


async def test_all_whose_time_is_over_are_closed_however_many_they_are(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helping, "_BATCH_SIZE", 2)
    for number in range(5):
        await two.asker.ask("helper", number, within_beats=1)
    await two.advance(1)
    assert await two.helper.close_due() == 5
    assert await two.counts() == (0, 0, 0, 5)


async def test_who_waits_closes_no_thread_but_its_own(two: Two) -> None:
    own, other = [await two.asker.ask("helper", number, within_beats=1) for number in range(2)]
    await two.advance(1)
    with pytest.raises(ThreadClosed):
        await two.asker.wait(own)
    assert await two.state(other) == "asked", (
        "the one that waits for that one closes it, or the next bar does"
    )


async def test_a_node_whose_clock_is_ahead_closes_nothing_before_its_time(two: Two) -> None:
    thread = await two.asker.ask("helper", "?", within_beats=2)
    later = Dependencies(wall_ms=lambda: two.harness.clock.now_ms + 3 * BEAT_S * 1_000)
    two.helper._context.times = Times(MeshClock(later))
    assert await two.helper.close_due() == 0
    assert await two.state(thread) == "asked"
    assert await two.inbox() == []


async def test_an_answer_and_the_close_that_race_leave_one_of_the_two(two: Two) -> None:
    for number in range(ROUNDS):
        thread = await two.asker.ask("helper", number, sender=f"s{number}", within_beats=1)
        (request,) = await two.helping.messages.poll_inbox_from_db("helper")
        left_ms = thread.closes_ms - await database_ms(two.helping)
        two.harness.clock._ahead_ms += left_ms - 2 * number  # just before the deadline, without a heartbeat
        answering, *closing = await asyncio.gather(
            two.helper.answer(request, number),
            *(each.close_due() for each in (two.asker, two.helper)),
            return_exceptions=True,
        )
        await two.advance(1)
        await two.helper.close_due()
        assert all(isinstance(each, int) for each in closing), "none of them failed"
        ended = await two.asker.state(thread)
        result = [len(await said_in(two, thread, msg_type)) for msg_type in (ANSWER, EXPIRED)]
        if isinstance(answering, ThreadClosed):
            assert (ended.state, result) == ("unanswered", [0, 1])
        else:
            assert isinstance(answering, Message)
            assert (ended.state, result) == ("kept", [1, 0])


# --- on a server ----------------------------------------------------------------------------------


async def test_on_a_server_too(shared_server: Server, tmp_path: Path) -> None:
    async with crowd_on(MESH_REPLICA, tmp_path, shared_server) as crowd, asyncio.timeout(PATIENCE_S):
        asking, helping = await crowd.node("asker"), await crowd.node("helper")
        asker, helper = help_of(asking, bpm=600), help_of(helping, bpm=600)
        kept = await asker.ask("helper", "?", within_beats=600)
        receiving = helping.messages.receive("helper")
        request = await anext(receiving)
        await helper.promise(request, promise_beats=600, fail_after_beats=600)
        waiting = asyncio.create_task(asker.wait(kept))
        await helper.answer(request, "here")
        assert (await waiting).body == "here"

        left = await asker.ask("unknown", "?", within_beats=1)
        with pytest.raises(ThreadClosed) as caught:
            await asker.wait(left)
        assert caught.value.state == "unanswered"
        await helping.store.synced()
        assert await helper.close_due() == 0
        assert await helper.counts(0, await database_ms(helping) + 1) == (1, 0, 0, 1)
        assert len(await asking.messages.queries.listed(thread=left.thread_id)) == 2, (
            "one of them is notified"
        )
        await receiving.aclose()
