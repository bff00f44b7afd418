"""A node on which phrases are played, in a time that passes at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson

from tests.support.nodes.virtual_time import dependencies, run
from vox_mesh import Mesh, Settings
from vox_mesh.model.rhythm.score import Score
from vox_mesh.node import MeshNode
from vox_mesh.rhythm.phrases.phrase import Phrase
from vox_mesh.store.engines.memory import SharedMemory

BEAT_MS = 5_000
"""At the built-in tempo."""

TASK = "ucxl://proj:any/task/ingest"
STAYS = {"on_overrun": ["checkpoint"]}
A_MS = 2 / BEAT_MS
"""A clock that tells whole milliseconds may be late by this many beats."""


class Stage:
    """A node, and what is asked of it."""

    def __init__(self, node: MeshNode) -> None:
        self.node = node
        self.ground = node.rhythm.context
        self.times = self.ground.times
        self.budgets = node.rhythm.budgets
        self.status = node.rhythm.status
        self.help = node.rhythm.help
        self.phrase = node.rhythm.phrase
        self.phrases = node.rhythm.phrases

    async def beats(self, count: float) -> None:
        """Let this many beats pass."""
        await self.times.until(self.times.now_ms + round(count * BEAT_MS))

    async def ends(self) -> list[dict[str, Any]]:
        """The phrases that have ended, as they are recorded."""
        rows = await self.node.store.read("SELECT * FROM phrase_ends ORDER BY ended_ms, attempt")
        ends = [row.as_dict() for row in rows]
        return [
            {**end, "beats": orjson.loads(end["beats"]), "waited": orjson.loads(end["waited"])}
            for end in ends
        ]

    async def ended_by_log(self) -> list[dict[str, Any]]:
        """The same by the log."""
        rows = await self.node.store.read(
            "SELECT payload FROM agent_oplog WHERE kind = 'EndPhrase' AND accepted = 1 ORDER BY id"
        )
        return [orjson.loads(row["payload"]) for row in rows]

    async def claims(self) -> list[tuple[str, str]]:
        """The claims that were made: states and notes."""
        await self.status.flush()
        rows = await self.node.store.read("SELECT state, notes FROM status_claims ORDER BY hlc")
        return [(row["state"], row["notes"]) for row in rows]

    async def assert_recorded(self, phrase: Phrase, outcome: str, state: str) -> dict[str, Any]:
        """A phrase is recorded as it ended: in the log, with its cost, and in the last claim; its row."""
        ends = {end["phrase_id"]: end for end in await self.ends()}
        logged = {end["phrase"]: end for end in await self.ended_by_log()}
        assert phrase.outcome == outcome
        end = ends[phrase.phrase_id]
        assert end["outcome"] == logged[phrase.phrase_id]["outcome"] == outcome
        assert end["cost"] == logged[phrase.phrase_id]["cost"] == phrase.cost == sum(end["beats"].values())
        assert (await self.claims())[-1][0] == state
        return end


@asynccontextmanager
async def stage(**settings: Any) -> AsyncIterator[Stage]:
    """A node of its own."""
    around = dependencies()
    async with Mesh.open(Settings(node_id="stage", agent_id="ada", **settings), around) as node:
        yield Stage(node)
    assert isinstance(around.memory, SharedMemory)
    await around.memory.drop()


def played(scenario: Callable[[Stage], Awaitable[None]], **settings: Any) -> None:
    """Run it on a stage of its own; nothing goes on when it is over, and no error is lost."""

    async def whole() -> None:
        lost: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
        async with stage(**settings) as here:
            before = asyncio.all_tasks()
            await scenario(here)
            left = {task.get_name() for task in asyncio.all_tasks() - before}
            assert left <= {"vox-mesh-inbox", "vox-mesh-inboxes"}, left  # of the messages
        assert lost == []

    run(whole())


async def for_ever() -> None:
    """Wait for what never comes."""
    await asyncio.Event().wait()


def score(**fields: Any) -> Score:
    """A score of 2, 4 and 2 beats, with what else is given."""
    return Score.of_document({"phases": {"plan": 2, "work": 4, "review": 2}, **fields})
