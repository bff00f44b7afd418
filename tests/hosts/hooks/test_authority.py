"""Who may do what by a hook: an agent acts in its own name, and within its grants."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts.hooks.hosts import HOSTS, HookedAgent, payload
from tests.support.messages.relaying import assert_problem
from tests.support.nodes.serving import READ_TOKEN, ServedNode
from vox_mesh.store import new_key

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _admitted(served: ServedNode, project: Path, *capabilities: str) -> HookedAgent:
    """An agent with a token of its own and these capabilities."""
    name = f"agent-{new_key().lower()}"
    await served.node.grants.admit(name)
    await served.node.grants.issue(name, list(capabilities))
    issued = await served.node.principals.tokens.issue(name, lasts="1h")
    return HookedAgent(served, HOSTS["claude"], project, name, issued.text)


async def test_a_token_acts_as_its_own_agent_only(served: ServedNode, project: Path, name: str) -> None:
    ann, ben = [await _admitted(served, project, "coder") for _ in range(2)]
    assert await ann.ask("before_edit", file=project / name, auto="true") == {}
    (held,) = await served.node.locks.holders([f"file:{name}"])
    assert held.holder_agent == ann.agent
    assert f'"{ann.agent}"' in ben.host.denied(await ben.ask("before_edit", file=project / name))
    raw = payload("claude", "before_edit", project, file=project / name)
    for path in ("/v1/hooks/claude", "/v1/hooks/claude/wait"):
        named = {"Vox-Agent": str(ann.agent)}
        answer = await served.ask("POST", path, raw, token=ben.token, headers=named)
        assert_problem(answer, 403, "not_your_name")
    assert await ben.ask("session_end") == {}
    assert len(await served.node.locks.holders([f"file:{name}"])) == 1


async def test_who_only_reads_and_who_has_no_token_can_not_ask(served: ServedNode, project: Path) -> None:
    raw = payload("claude", "session_end", project)
    assert_problem(await served.ask("POST", "/v1/hooks/claude", raw, token=READ_TOKEN), 403, "read_only")
    assert_problem(await served.ask("POST", "/v1/hooks/claude", raw, token=None), 401, "token_missing")


async def test_an_agent_that_may_not_lock_a_path_does_not_edit_it(
    served: ServedNode, project: Path, name: str
) -> None:
    agent = await _admitted(served, project, "can lock.acquire on file:docs/**")
    assert await agent.ask("before_edit", file=project / "docs" / name, auto="true") == {}
    reason = agent.host.denied(await agent.ask("before_edit", file=project / name, auto="true"))
    assert "no grant" in reason
    assert await served.node.locks.holders([f"file:{name}"]) == []


async def test_an_agent_without_grants_for_jobs_and_messages_can_still_end_its_session(
    served: ServedNode, project: Path
) -> None:
    agent = await _admitted(served, project, "can lock.acquire on file:**")
    assert agent.host.context(await agent.ask("session_start"))
    for event in ("after_tool", "stop", "session_end"):
        assert await agent.ask(event) == {}
