"""Graphs of LangGraph whose threads a mesh keeps, and its conformance suite."""

from __future__ import annotations

import operator
from collections.abc import AsyncGenerator, Callable
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.report import CapabilityReport
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, interrupt

from vox_mesh.integrations.langgraph import MeshCheckpointSaver
from vox_mesh.mesh import Mesh

__all__ = ["END", "Command", "MeshCheckpointSaver", "State", "approval_graph", "conformance", "put", "thread"]


class State(TypedDict):
    """The state of the graphs here."""

    topic: str
    notes: Annotated[list[str], operator.add]


def approval_graph(
    saver: BaseCheckpointSaver[Any], note: Callable[[str], None]
) -> CompiledStateGraph[State, None, State, State]:
    """Return a graph that drafts, waits for an approval, and publishes. `note` is called by each node."""

    def draft(state: State) -> dict[str, Any]:
        note("draft")
        return {"notes": [f"draft on {state['topic']}"]}

    def approve(state: State) -> dict[str, Any]:
        answer = interrupt({"question": "publish?"})
        note("approve")
        return {"notes": [f"approved by {answer}"]}

    def publish(state: State) -> dict[str, Any]:
        note("publish")
        return {"notes": ["published"]}

    builder = StateGraph(State)
    builder.add_node("draft", draft)
    builder.add_node("approve", approve)
    builder.add_node("publish", publish)
    builder.add_edge(START, "draft")
    builder.add_edge("draft", "approve")
    builder.add_edge("approve", "publish")
    builder.add_edge("publish", END)
    return builder.compile(checkpointer=saver)


def thread(name: str, checkpoint_id: str | None = None) -> RunnableConfig:
    """Return the config of a thread, or of one of its checkpoints."""
    given = {"thread_id": name, "checkpoint_ns": ""}
    return {"configurable": given if checkpoint_id is None else {**given, "checkpoint_id": checkpoint_id}}


async def put(
    saver: MeshCheckpointSaver, name: str, value: Any, parent: str | None = None, **metadata: Any
) -> str:
    """Store a checkpoint with one value, and return its id."""
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"value": value}
    described: Any = {"source": "loop", "step": 0, "parents": {}, **metadata}
    stored = await saver.aput(thread(name, parent), checkpoint, described, {})
    identifier: str = stored["configurable"]["checkpoint_id"]
    return identifier


async def listed(saver: MeshCheckpointSaver, config: RunnableConfig | None, **options: Any) -> list[Any]:
    """Return the values of checkpoints, as `alist` yields them."""
    found: list[CheckpointTuple] = [each async for each in saver.alist(config, **options)]
    return [each.checkpoint["channel_values"]["value"] for each in found]


async def conformance(mesh: Mesh) -> CapabilityReport:
    """Run LangGraph's conformance suite."""

    @checkpointer_test(name="vox-mesh")
    async def create() -> AsyncGenerator[BaseCheckpointSaver[Any], None]:
        yield MeshCheckpointSaver(mesh)

    return await validate(create)
