"""Locks over HTTP."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import httpx
import pytest

from tests.support.messages.relaying import PATIENCE_S, assert_problem
from tests.support.nodes.printing import printed, timeless
from tests.support.nodes.serving import ServedNode
from vox_mesh.http.api import locks
from vox_mesh.model.locks.records import milliseconds_at
from vox_mesh.store.script import new_key
from vox_mesh.views.locks import AcquiredView

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def key() -> str:
    """A key that no other test has."""
    return f"task:{new_key()}"


async def wanted(served: ServedNode, *keys: str, agent: str = "coder", **more: Any) -> httpx.Response:
    """What is answered to one who wants a lock."""
    return await served.ask("POST", "/v1/locks", {"keys": keys, "agent": agent, **more})


async def acquired(served: ServedNode, *keys: str, **more: Any) -> Any:
    """A lock that is free."""
    answer = await wanted(served, *keys, **more)
    assert answer.status_code == HTTPStatus.CREATED, answer.text
    return answer.json()


def hold(key: str, token: int) -> dict[str, Any]:
    """What names a hold."""
    return {"lock_key": key, "fence_token": token}


async def test_a_lock_is_had_renewed_and_let_go_and_its_token_rises(served: ServedNode, key: str) -> None:
    first = await acquired(served, key, f"{key}/more", ttl="30s")
    assert first["lock_keys"] == [key, f"{key}/more"]
    assert (first["holder_node"], first["holder_agent"], first["is_shared"]) == ("ann", "coder", False)
    token = first["fence_token"]
    renewed = await served.post("/v1/locks/renew", {**hold(key, token), "ttl": "10m"})
    assert (renewed["fence_token"], renewed["expires_at"] > first["expires_at"]) == (token, True)
    released = await served.post("/v1/locks/release", hold(key, token))
    assert released["lock_keys"] == [key, f"{key}/more"]
    for path in ("release", "renew"):
        late = await served.ask("POST", f"/v1/locks/{path}", hold(key, token))
        assert_problem(late, HTTPStatus.NOT_FOUND, "not_known")
    again = await acquired(served, key)
    assert again["fence_token"] > token
    wrong = await served.ask("POST", "/v1/locks/release", hold(key, token))
    assert_problem(wrong, HTTPStatus.NOT_FOUND, "not_known")
    await served.post("/v1/locks/release", hold(key, again["fence_token"]))


async def test_a_lock_may_be_until_the_bar_ends_or_for_a_time_and_not_both(
    served: ServedNode, key: str
) -> None:
    held = await acquired(served, key, until="bar")
    ends_ms = milliseconds_at(held["expires_at"])
    at = served.node.rhythm.timeline.delta_beats(
        served.node.rhythm.timeline.window_at(ends_ms).start_ms, ends_ms
    )
    assert at in (0, 8), "to the nearest beat: the way to the database takes a while"
    await served.post("/v1/locks/release", hold(key, held["fence_token"]))
    both = await wanted(served, key, until="bar", ttl="5s")
    assert_problem(both, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_value")
    assert_problem(await wanted(served, key, until="week"), HTTPStatus.UNPROCESSABLE_ENTITY, "bad_body")
    assert await served.all("/v1/locks", key=key) == []


async def test_one_that_comes_second_is_notified_who_holds_it(served: ServedNode, key: str) -> None:
    held = await acquired(served, key)
    refused = await wanted(served, key, agent="other")
    assert_problem(refused, HTTPStatus.CONFLICT, "lock_held")
    (holder,) = refused.json()["holders"]
    assert (holder["lock_key"], holder["fence_token"]) == (key, held["fence_token"])
    (listed,) = await served.all("/v1/locks", key=key)
    assert timeless(listed) == timeless(holder)
    assert timeless(await printed(served, "lock", "acquire", key, "--agent", "other")) == [timeless(holder)]


async def test_locks_are_listed_and_let_go_by_commands_too(served: ServedNode, key: str) -> None:
    held = await acquired(served, key)
    assert timeless(await served.all("/v1/locks")) == timeless(await printed(served, "lock", "list"))
    token = held["fence_token"]
    (name,) = held.pop("lock_keys")
    assert not held.pop("is_renewed")
    assert await printed(served, "lock", "release", key, "--token", str(token)) == {"lock_key": name, **held}
    taken = await printed(served, "lock", "acquire", key, "--agent", "other")
    assert taken["fence_token"] > token
    assert (await served.post("/v1/locks/release", hold(key, taken["fence_token"])))["lock_keys"] == [key]


async def test_an_agent_renews_and_releases_what_it_holds_if_it_says_so(served: ServedNode, key: str) -> None:
    held = await acquired(served, key, or_renew=True)
    assert_problem(await wanted(served, key), HTTPStatus.CONFLICT, "lock_held")
    renewed = await acquired(served, key, or_renew=True, ttl="20m")
    assert (renewed["fence_token"], renewed["is_renewed"]) == (held["fence_token"], True)
    both = await wanted(served, key, or_renew=True, until="bar")
    assert_problem(both, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_value")
    assert await served.all("/v1/locks", key=key, agent="other") == []
    assert len(await served.all("/v1/locks", key=key, agent="coder")) == 1
    own = {"agent": "coder", "lock_key": key}
    other = await served.ask("POST", "/v1/locks/release-held", {**own, "agent": "other"})
    assert_problem(other, HTTPStatus.NOT_FOUND, "not_known")
    (released,) = await served.post("/v1/locks/release-held", own)
    assert released["fence_token"] == held["fence_token"]
    assert await served.post("/v1/locks/release-held", {"agent": key}) == []


async def test_a_lock_may_last_as_long_as_its_agent_sends_heartbeats(served: ServedNode, key: str) -> None:
    agent = key.removeprefix("task:")
    held = await acquired(served, key, agent=agent, session="heartbeats", ttl="40s")
    (listed,) = await served.all("/v1/locks", key=key)
    assert (listed["session"], listed["session_pid"], listed["left_ms"] <= 40_000) == (
        "heartbeats",
        None,
        True,
    )
    await served.post("/v1/locks/renew", {**hold(key, held["fence_token"]), "ttl": "2s"})
    answer = await served.post(f"/v1/agents/{agent}/heartbeat")
    (renewed,) = answer["locks"]
    assert (answer["agent_id"], renewed["lock_keys"], renewed["fence_token"]) == (
        agent,
        [key],
        held["fence_token"],
    )
    assert milliseconds_at(renewed["expires_at"]) - milliseconds_at(listed["expires_at"]) > -2_000
    await served.node.run_once()
    seen = await served.get(f"/v1/agents/{agent}")
    assert (seen["state"], seen["last_action"]) == ("alive", "heartbeat")
    await served.post("/v1/locks/release", hold(key, held["fence_token"]))
    assert (await served.post(f"/v1/agents/{agent}/heartbeat"))["locks"] == []
    both = await wanted(served, key, session="heartbeats", until="bar")
    assert_problem(both, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_value")
    assert_problem(await wanted(served, key, session="pid"), HTTPStatus.UNPROCESSABLE_ENTITY, "bad_body")


async def test_one_that_disconnects_keeps_the_lock_that_it_had_before(served: ServedNode, key: str) -> None:
    held = AcquiredView.of(await served.node.locks.acquire_or_renew(key, agent="coder"))
    again = AcquiredView.of(await served.node.locks.acquire_or_renew(key, agent="coder"))
    await locks._release_unclaimed(served.node, again)
    assert len(await served.all("/v1/locks", key=key)) == 1
    await locks._release_unclaimed(served.node, held)
    assert await served.all("/v1/locks", key=key) == []


async def test_one_that_can_wait_gets_it_once_it_is_let_go(served: ServedNode, key: str) -> None:
    held = await acquired(served, key)
    async with asyncio.timeout(PATIENCE_S):
        waiting = asyncio.create_task(acquired(served, key, agent="other", wait="30s"))
        while not (await served.all("/v1/locks", key=key))[0]["waiting"]:
            await served.node.store.changed(served.node.store.change_count)
        await served.post("/v1/locks/release", hold(key, held["fence_token"]))
        assert (await waiting)["fence_token"] > held["fence_token"]


async def test_waiters_are_listed_in_their_order_with_the_locks_that_block_them(served: ServedNode) -> None:
    """A pattern blocks a path below it; a shared request behind an exclusive one waits for that one."""
    folder = f"file:{new_key()}"
    held = await acquired(served, f"{folder}/**")
    path = f"{folder}/cart.py"

    async def places() -> list[tuple[str, int, list[str]]]:
        listed = await served.get("/v1/locks/waiters")
        own = [each for each in listed if each["lock_key"] == path]
        return [(each["holder_agent"], each["place"], each["blocked_by"]) for each in own]

    async with asyncio.timeout(PATIENCE_S):
        waiting = []
        for agent in ("one", "two"):
            waiting.append(asyncio.create_task(wanted(served, path, agent=agent, wait="30s")))
            while len(await places()) < len(waiting):
                await served.node.store.changed(served.node.store.change_count)
        assert await places() == [("one", 1, [f"{folder}/**"]), ("two", 2, [f"{folder}/**"])]
        for agent in ("one", "two"):
            await served.post("/v1/locks/break", {"lock_key": held["lock_keys"][0], "reason": "over"})
            held = (await waiting.pop(0)).json()
            assert held["holder_agent"] == agent
    assert await places() == []
    await served.post("/v1/locks/release", hold(path, held["fence_token"]))


async def test_shared_holds_share(served: ServedNode, key: str) -> None:
    tokens = [
        (await acquired(served, key, agent=agent, shared=True))["fence_token"] for agent in ("one", "two")
    ]
    holders = await served.all("/v1/locks", key=key, limit=1)
    assert [(each["holder_agent"], each["is_shared"]) for each in holders] == [("one", True), ("two", True)]
    refused = await wanted(served, key)
    assert_problem(refused, HTTPStatus.CONFLICT, "lock_held")
    assert len(refused.json()["holders"]) == 2
    for token in tokens:
        await served.post("/v1/locks/release", hold(key, token))


async def test_a_broken_lock_is_in_the_log(served: ServedNode, key: str) -> None:
    held = await acquired(served, key)
    document = await served.post("/v1/locks/break", {"lock_key": key, "reason": "its agent hangs"})
    assert [each["fence_token"] for each in document["broken"]] == [held["fence_token"]]
    assert (await served.get(f"/v1/oplog/{document['op_id']}"))["payload"]["reason"] == "its agent hangs"
    absent = await served.ask("POST", "/v1/locks/break", {"lock_key": key, "reason": "again"})
    assert_problem(absent, HTTPStatus.NOT_FOUND, "not_known")


async def test_what_is_in_the_way_of_a_path_is_reported_and_nothing_is_of_ones_own(
    served: ServedNode,
) -> None:
    folder = new_key()
    held = await acquired(served, f"file:{folder}/*.py")
    paths = [f"{folder}/a.py", f"{folder}/a.md"]
    (document,) = await served.post("/v1/locks/check", {"paths": paths, "agent": "other"})
    assert (document["path"], document["holder"]["fence_token"]) == (paths[0], held["fence_token"])
    assert await served.post("/v1/locks/check", {"paths": paths, "agent": "coder"}) == []
    required = {"paths": paths, "agent": "coder", "require_lock": True}
    assert await served.post("/v1/locks/check", required) == [{"path": paths[1], "holder": None}]


async def test_pages_have_every_hold_once_while_others_come_and_go(served: ServedNode, key: str) -> None:
    there = [f"{key}:{number}" for number in range(5)]
    tokens = {each: (await acquired(served, each))["fence_token"] for each in there}
    seen: list[str] = []
    answer = await served.ask("GET", "/v1/locks", params={"limit": 2})
    for round_ in range(100):
        seen += [each["lock_key"] for each in answer.json()["items"]]
        if "next" not in answer.links:
            break
        if round_ == 0:
            await acquired(served, f"{key}:2b")
            await served.post("/v1/locks/release", hold(there[0], tokens[there[0]]))
        answer = await served.ask("GET", answer.links["next"]["url"])
    assert answer.json()["next"] is None
    assert seen == sorted(set(seen))
    assert {*there[1:]} <= {*seen}


async def test_what_has_expired_is_swept_as_the_command_does(served: ServedNode) -> None:
    assert set(await served.post("/v1/locks/sweep")) == set(await printed(served, "lock", "sweep"))


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"ttl": "1ms"}, "bad_value"),
        ({"wait": "61s"}, "bad_body"),
        ({"wait": 60.5}, "bad_body"),
        ({"shared": 1}, "bad_body"),
        ({"keys": []}, "bad_body"),
        ({"keys": ["a\0b"]}, "bad_value"),
        ({"agent": ""}, "bad_body"),
    ],
)
async def test_a_lock_that_no_one_can_have_is_refused(
    served: ServedNode, more: dict[str, Any], code: str
) -> None:
    answer = await served.ask("POST", "/v1/locks", {"keys": ["a"], "agent": "coder", **more})
    assert_problem(answer, HTTPStatus.UNPROCESSABLE_ENTITY, code)
