"""A node joins again after a rollback, though the answer to its registration is lost or it is refused."""

from __future__ import annotations

import sqlite3

import pytest

from tests.support.oplog.authoring import noted, scene
from vox_mesh.errors import NoAnswer, NodeInUse, StaleIncarnation
from vox_mesh.model.nodes.store_memory import INCARNATIONS_RAISED_BY
from vox_mesh.store.batch import Batch, BatchResult
from vox_mesh.store.engines.memory import MemoryEngine
from vox_mesh.store.schema.statements import named

_REGISTRATION = named("nodes")["raise_incarnation"]


class LossyEngine(MemoryEngine):
    """A database that can lose the answer to the next registration, and can be put back."""

    def __init__(self) -> None:
        super().__init__()
        self.loses_registration = False

    async def run(self, batch: Batch) -> BatchResult:
        """Run the batch, and lose the answer if that was asked for."""
        result = await super().run(batch)
        if self.loses_registration and any(step.sql == _REGISTRATION for step in batch.steps):
            self.loses_registration = False
            raise NoAnswer("the answer was lost")
        return result

    def image(self) -> sqlite3.Connection:
        """Return a snapshot."""
        image = sqlite3.connect(":memory:")
        self._connection.backup(image)
        return image

    def put_back(self, image: sqlite3.Connection) -> None:
        """Restore a snapshot."""
        image.backup(self._connection)

    def change(self, sql: str) -> None:
        """Write as another process would."""
        self._connection.execute(sql)


async def test_a_node_whose_answer_is_lost_does_not_take_itself_for_a_replacement() -> None:
    engine = LossyEngine()
    async with scene(engine) as there, there.node("a") as a:
        await a.run_once()
        image, before = engine.image(), a.incarnation or 0
        await a.store.write(noted())
        await a.run_once()
        engine.put_back(image)
        engine.loses_registration = True
        await a.store.write(noted())
        assert not engine.loses_registration, "no answer was lost"
        assert a.incarnation == before + INCARNATIONS_RAISED_BY + 1, "it registered once"


async def test_a_node_that_was_refused_as_in_use_yields_to_the_process_that_replaced_it() -> None:
    engine = LossyEngine()
    async with scene(engine) as there, there.node("a") as a:
        await a.run_once()
        image = engine.image()
        await a.store.write(noted())
        await a.run_once()
        engine.put_back(image)
        engine.change("UPDATE mesh_heartbeats SET place = 'elsewhere'")
        with pytest.raises(NodeInUse):
            await a.store.write(noted())
        engine.change("UPDATE node_incarnations SET incarnation = incarnation + 1")
        engine.change("UPDATE mesh_heartbeats SET left_ms = 1")
        with pytest.raises(StaleIncarnation):
            await a.store.write(noted())


async def test_a_process_does_not_join_again_after_another_one_of_its_node_has() -> None:
    """The rollback has lost both registrations, so that their numbers are the same."""
    engine = LossyEngine()
    async with scene(engine) as there, there.node("b") as b:
        async with there.node("a") as first:
            await first.run_once()
        await b.run_once()
        image = engine.image()
        async with there.node("a") as a:
            await a.run_once()
            await b.store.write(noted())
            await b.run_once()
            engine.put_back(image)
            await b.store.write(noted())
            engine.change("UPDATE node_incarnations SET incarnation = incarnation + 1 WHERE node_id = 'a'")
            engine.change(
                "UPDATE mesh_heartbeats SET incarnation = i.incarnation FROM node_incarnations AS i"
                " WHERE i.node_id = 'a' AND mesh_heartbeats.node_id = 'a'"
            )
            with pytest.raises(StaleIncarnation):
                await a.store.write(noted())
