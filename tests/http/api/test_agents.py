"""Agents over HTTP."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from tests.support.messages.relaying import assert_problem
from tests.support.nodes.printing import printed
from tests.support.nodes.serving import ServedNode

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_agents_come_in_pages_and_as_the_command_shows_them(served: ServedNode) -> None:
    lock = await served.node.locks.acquire("task:release", agent="coder", ttl=60)
    await served.node.messages.send("critic", "look", sender="writer")
    await served.node.run_once()
    found = await served.all("/v1/agents", limit=1)
    states = [(each["agent_id"], each["state"], each["locks"]) for each in found]
    assert states == [("coder", "alive", ["task:release"]), ("writer", "alive", [])]
    ages = {"age_ms": 0}
    assert [each | ages for each in found] == [each | ages for each in await printed(served, "agents")]
    assert (await served.get("/v1/agents/writer")) | ages == found[1] | ages
    await served.node.locks.release(lock)


async def test_an_agent_that_never_acted_is_not_known(served: ServedNode) -> None:
    assert_problem(await served.ask("GET", "/v1/agents/nemo"), HTTPStatus.NOT_FOUND, "not_known")
