"""Messages over HTTP."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest

from tests.support.messages.messaging import change, lapse
from tests.support.messages.relaying import assert_problem
from tests.support.nodes.printing import printed
from tests.support.nodes.serving import Served
from vox_mesh import Message
from vox_mesh.errors import TooLarge
from vox_mesh.http.api import pages
from vox_mesh.messages.queries import MessageQueries
from vox_mesh.store.script import new_key

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def agent() -> str:
    """An agent that no other test has."""
    return new_key().lower()


async def sent(served: Served, to: str, payload: Any = "hello", **more: Any) -> Any:
    """A message that was sent over HTTP."""
    body = {"to": to, "sender": "coder", "payload": payload, **more}
    answer = await served.ask("POST", "/v1/messages", body)
    assert answer.status_code == HTTPStatus.CREATED, answer.text
    (message,) = answer.json()
    return message


async def claimed(served: Served, agent: str, **more: Any) -> list[Any]:
    """What an agent claims."""
    document: list[Any] = await served.post(f"/v1/inbox/{agent}/claim", more)
    return document


async def kept(served: Served, message: Any) -> Message:
    """A message as the database has it."""
    found = await served.node.messages.queries.find(message["message_uuid"])
    assert found is not None
    return found


async def test_a_message_is_sent_listed_and_shown_as_commands_do(served: Served, agent: str) -> None:
    message = await sent(
        served, agent, {"text": "héllo", "n": [1.5, None]}, thread="talk", priority=3, ttl="1h"
    )
    assert (message["receiver_agent"], message["payload"]) == (agent, {"text": "héllo", "n": [1.5, None]})
    assert (message["state"], message["priority"], message["acknowledged"]) == ("stored", 3, False)
    assert await served.all("/v1/messages", receiver=agent, sender="coder", thread="talk") == [message]
    assert await printed(served, "messages", "list", "--to", agent) == [message]
    beginning = message["message_uuid"].lower()
    assert await served.get(f"/v1/messages/{beginning}") == message
    assert await printed(served, "messages", "show", beginning) == message
    assert await served.all(f"/v1/inbox/{agent}") == [message]
    assert await printed(served, "inbox", agent) == [message]
    threads = await served.get("/v1/threads")
    assert threads == await printed(served, "messages", "threads")
    assert threads[0]["thread_id"] == "talk"


async def test_sent_again_under_its_key_it_is_one_message(served: Served, agent: str) -> None:
    key = new_key()
    first, again = [await sent(served, agent, key=key) for _ in range(2)]
    assert first["message_uuid"] == again["message_uuid"] == key
    assert len(await served.all("/v1/messages", receiver=agent)) == 1
    for_everyone = {"to": "*", "sender": "coder", "payload": 1, "key": new_key()}
    refused = await served.ask("POST", "/v1/messages", for_everyone)
    assert_problem(refused, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_value")


async def test_what_was_claimed_over_http_is_acknowledged_there_and_by_commands(
    served: Served, agent: str
) -> None:
    for number in range(2):
        await sent(served, agent, number)
    one, two = await claimed(served, agent, limit=2, lease="1m")
    assert [each["payload"] for each in (one, two)] == [0, 1]
    assert await claimed(served, agent) == []
    owner = one["claim_owner"]
    done = await served.post(f"/v1/messages/{one['message_uuid']}/ack", {"claim_owner": owner})
    assert (done["state"], done["acknowledged"]) == ("acked", True)
    (acked,) = await printed(served, "messages", "ack", two["message_uuid"], "--claim", two["claim_owner"])
    assert acked == await served.get(f"/v1/messages/{two['message_uuid']}")
    assert acked["acknowledged"]


async def test_what_commands_claimed_is_acknowledged_over_http(served: Served, agent: str) -> None:
    await sent(served, agent)
    (message,) = await printed(served, "inbox", agent, "--claim")
    document = await served.post(
        f"/v1/messages/{message['message_uuid']}/ack", {"claim_owner": message["claim_owner"]}
    )
    assert document["acknowledged"]


async def test_only_one_who_has_a_message_says_what_became_of_it(served: Served, agent: str) -> None:
    await sent(served, agent)
    (message,) = await claimed(served, agent, lease="1m")
    path = f"/v1/messages/{message['message_uuid']}"
    for way in ("ack", "nack"):
        wrong = await served.ask("POST", f"{path}/{way}", {"claim_owner": "another"})
        assert_problem(wrong, HTTPStatus.CONFLICT, "not_holder")
    await lapse(served.node, await kept(served, message))
    (again,) = await claimed(served, agent)
    assert (again["message_uuid"], again["delivery_attempts"]) == (message["message_uuid"], 2)
    late = await served.ask("POST", f"{path}/ack", {"claim_owner": message["claim_owner"]})
    assert_problem(late, HTTPStatus.CONFLICT, "not_holder")
    assert (await served.get(path))["state"] == "delivered"


async def test_a_message_that_is_given_back_too_often_is_dead_until_it_is_sent_again(
    served: Served, agent: str
) -> None:
    message = await sent(served, agent, max_attempts=1)
    path = f"/v1/messages/{message['message_uuid']}"
    alive = await served.ask("POST", f"{path}/retry")
    assert_problem(alive, HTTPStatus.NOT_FOUND, "not_known")
    (had,) = await claimed(served, agent)
    dead = await served.post(f"{path}/nack", {"claim_owner": had["claim_owner"], "reason": "it is broken"})
    assert (dead["state"], dead["ended_reason"]) == ("dead", "it is broken")
    assert await served.all("/v1/messages", state="dead") == await printed(served, "messages", "dead")
    assert (await served.post(f"{path}/retry"))["state"] == "stored"
    assert [each["message_uuid"] for each in await claimed(served, agent)] == [message["message_uuid"]]


async def test_a_message_for_a_role_reaches_anyone_who_has_it(served: Served, agent: str) -> None:
    await sent(served, f"role:{agent}", "to a role")
    assert await served.all(f"/v1/inbox/{agent}") == []
    (waiting,) = await served.all(f"/v1/inbox/{agent}", roles=f"{agent},other")
    assert (await claimed(served, agent, roles=[agent]))[0]["message_uuid"] == waiting["message_uuid"]


async def test_overdue_ones_are_reported(served: Served, agent: str) -> None:
    message = await sent(served, agent, ack_within="1s")
    await change(served.node, [await kept(served, message)], ack_by_ms=1)
    (overdue,) = await served.get("/v1/messages/overdue")
    assert overdue["message_uuid"] == message["message_uuid"]
    assert [overdue] == await printed(served, "messages", "overdue")


async def test_pages_have_every_message_once_while_others_come(served: Served, agent: str) -> None:
    for number in range(5):
        await sent(served, agent, number)
    first = await served.ask("GET", "/v1/messages", params={"receiver": agent, "limit": 2})
    await sent(served, agent, "new")
    seen = [each["payload"] for each in first.json()["items"]]
    answer = first
    while "next" in answer.links:
        answer = await served.ask("GET", answer.links["next"]["url"])
        seen += [each["payload"] for each in answer.json()["items"]]
    assert seen == [4, 3, 2, 1, 0]
    waiting = [each["payload"] for each in await served.all(f"/v1/inbox/{agent}", limit=4)]
    assert waiting == [0, 1, 2, 3, 4, "new"]


async def test_where_messages_are_too_large_for_one_answer_pages_have_fewer(
    served: Served, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a server that answers with so much at most; the file home has no such limit."""
    read = MessageQueries._read

    async def read_a_few(self: MessageQueries, name: str, *values: Any) -> list[Message]:
        if name in ("list", "peek") and values[-1] > 2:
            raise TooLarge("the answer is too large", statement=0)
        return await read(self, name, *values)

    for number in range(5):
        await sent(served, agent, number)
    monkeypatch.setattr(MessageQueries, "_read", read_a_few)
    page = await served.get("/v1/messages", receiver=agent, limit=7)
    assert ([each["payload"] for each in page["items"]], page["next"]) == ([4, 3, 2, 1, 0], None)
    monkeypatch.setattr(pages, "MAX_PAGE_BYTES", 1)
    page = await served.get("/v1/messages", receiver=agent, limit=7)
    assert 0 < len(page["items"]) <= 2
    assert [each["payload"] for each in await served.all("/v1/messages", receiver=agent)] == [4, 3, 2, 1, 0]
    assert [each["payload"] for each in await served.all(f"/v1/inbox/{agent}")] == [0, 1, 2, 3, 4]


async def test_what_can_not_be_sent_is_refused(served: Served, agent: str) -> None:
    good = {"to": agent, "sender": "coder", "payload": 1}
    for change_, status, code in (
        ({"payload": "x" * 300_000}, 422, "bad_value"),
        ({"payload": "x" * 3_000_000}, 413, "too_large"),
        ({"priority": 4}, 422, "bad_body"),
        ({"priority": True}, 422, "bad_body"),
        ({"to": ""}, 422, "bad_body"),
        ({"key": "no ulid"}, 422, "bad_value"),
        ({"traceparent": "no trace"}, 422, "bad_value"),
        ({"ttl": "-1s"}, 422, "bad_body"),
        ({"to": "a\0b"}, 422, "bad_value"),
    ):
        assert_problem(await served.ask("POST", "/v1/messages", good | change_), status, code)
    unknown = await served.ask("GET", f"/v1/messages/{new_key()}")
    assert_problem(unknown, HTTPStatus.NOT_FOUND, "not_known")
    spooled = await served.ask("GET", "/v1/messages", params={"state": "spooled"})
    assert_problem(spooled, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_value")
    assert await served.all("/v1/messages", receiver=agent) == []
