"""Nodes over HTTP."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from tests.support.messages.relaying import assert_problem
from tests.support.nodes.printing import printed, timeless
from tests.support.nodes.serving import ServedNode
from tests.support.nodes.shared_mesh import come_and_go

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_live_ones_are_reported_as_the_command_tells_them(served: ServedNode) -> None:
    (document,) = await served.all("/v1/nodes")
    assert (document["node_id"], document["state"], document["role"]) == ("ann", "alive", "owner")
    assert timeless([document]) == timeless(await printed(served, "nodes"))
    assert timeless(await served.get("/v1/nodes/ann")) == timeless(document)


async def test_the_ones_that_have_left_are_reported_if_they_are_asked_for(served: ServedNode) -> None:
    for name in ("ben", "cas"):
        await come_and_go(served.shared_mesh, name)
    assert [each["node_id"] for each in await served.all("/v1/nodes")] == ["ann"]
    document = await served.all("/v1/nodes", all="true", limit=1)
    assert [(each["node_id"], each["state"]) for each in document] == [
        *(("ann", "alive"), ("ben", "left"), ("cas", "left"))
    ]
    assert timeless(document) == timeless(await printed(served, "nodes", "--all"))


async def test_one_that_never_was_here_is_not_known(served: ServedNode) -> None:
    assert_problem(await served.ask("GET", "/v1/nodes/unknown"), HTTPStatus.NOT_FOUND, "not_known")


async def test_one_that_has_left_can_be_removed_and_a_live_one_not(served: ServedNode) -> None:
    await come_and_go(served.shared_mesh, "dan")
    refused = await served.ask("DELETE", "/v1/nodes/ann")
    assert_problem(refused, HTTPStatus.CONFLICT, "node_in_use")
    assert "it is alive" in refused.json()["detail"]
    removed = (await served.ask("DELETE", "/v1/nodes/dan")).json()
    assert removed == {"op_id": removed["op_id"], "node_id": "dan"}
    assert_problem(await served.ask("GET", "/v1/nodes/dan"), HTTPStatus.NOT_FOUND, "not_known")
    assert_problem(await served.ask("DELETE", "/v1/nodes/dan"), HTTPStatus.NOT_FOUND, "not_known")


@pytest.mark.parametrize("said", ["-1", "x", str(2**53 + 1), "1.5"])
async def test_a_time_that_is_none_is_refused(served: ServedNode, said: str) -> None:
    answer = await served.ask("GET", "/v1/nodes", params={"stale_ms": said})
    assert_problem(answer, HTTPStatus.UNPROCESSABLE_ENTITY, "bad_query")
    assert "stale_ms" in answer.json()["detail"]
