"""Agents of the OpenAI Agents SDK, with a scripted model and a tool that needs an approval."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agents import Agent, Runner, RunState, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

from vox_mesh.integrations.openai_agents import MeshSession

__all__ = ["MeshSession", "RunState", "Runner", "answering", "publisher"]

set_tracing_disabled(True)


def answering(*texts: str) -> Agent[Any]:
    """Return an agent that gives these answers."""
    return Agent(name="writer", model=ScriptedModel([[assistant_message(text)] for text in texts]))


def publisher(note: Callable[[str], None], *, is_resumed: bool) -> Agent[Any]:
    """Return an agent that publishes once it may, and says so. `note` is called with the topic."""

    @function_tool(needs_approval=True)
    def publish(topic: str) -> str:
        """Publish the report on a topic."""
        note(topic)
        return f"published {topic}"

    calls: list[Any] = [[function_call("publish", {"topic": "bees"}, call_id="c1")]]
    answers: list[Any] = [[assistant_message("it is out")]]
    return Agent(name="publisher", model=ScriptedModel(answers if is_resumed else calls), tools=[publish])


def item(number: int) -> dict[str, Any]:
    """Return an item of a conversation."""
    return {"role": "user", "content": f"message {number}"}
