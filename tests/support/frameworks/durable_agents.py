"""Agents of Pydantic AI whose runs are durable, and a worker that is killed in the middle of one.

`python -m tests.support.frameworks.durable_agents FOLDER`

The folder gets `effects`, and `killed` once the worker has killed itself. It ends when the job has ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from tests.support.messages.message_programs import Lines
from vox_mesh import JobContext, Mesh
from vox_mesh.integrations.pydantic_ai import MeshDurability, in_job

__all__ = [
    "Agent",
    "FunctionModel",
    "MeshDurability",
    "ModelRetry",
    "Report",
    "RunContext",
    "TestModel",
    "in_job",
    "researcher",
]

KIND = "research"


class Report(BaseModel):
    """What an agent may return."""

    topic: str
    pages: int


def researcher(
    note: Callable[[str], None], look_up: Callable[[str], Any], topics: list[str], **options: Any
) -> Agent[None, str]:
    """Return an agent that looks all topics up at once, and then tells what it has found.

    `note` is called with each request to its model, and `look_up` by its tool.
    """

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        found = [
            part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)
        ]
        note(f"model {len(found)}")
        if not found:
            return ModelResponse([ToolCallPart("look_up", {"topic": each}) for each in topics])
        return ModelResponse([TextPart("; ".join(map(str, found)))])

    agent = Agent(
        FunctionModel(answer), name="researcher", capabilities=[MeshDurability(**options)], retries=3
    )
    agent.tool_plain(name="look_up")(_tool(look_up))
    return agent


def _tool(look_up: Callable[[str], Any]) -> Callable[[str], Any]:
    async def call(topic: str) -> Any:
        """Look up a topic."""
        result = look_up(topic)
        return await result if asyncio.iscoroutine(result) else result

    return call


async def main(folder: Path) -> None:
    """Work until the job has ended, and be killed at the second call of the tool."""
    effects, killed = Lines(str(folder / "effects")), folder / "killed"

    def look_up(topic: str) -> str:
        effects.add(f"tool {topic}")
        if topic == "ants" and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return f"about {topic}"

    agent = researcher(effects.add, look_up, ["bees", "ants"])
    async with Mesh.open() as mesh:
        has_ended = asyncio.Event()

        @mesh.worker.handles(KIND, lease=1)
        async def handle(context: JobContext) -> str:
            with in_job(context):
                output = (await agent.run("what is known?")).output
            has_ended.set()
            return output

        async with mesh.worker.running():
            await has_ended.wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
