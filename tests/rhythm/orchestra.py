"""Five nodes in one process: each with a clock of its own, which is wrong, and a line that can be cut."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vox_mesh import Mesh
from vox_mesh.errors import CircuitOpen, MeshError, NodeInUse
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.store.batch import Batch, BatchResult
from vox_mesh.store.engines.memory import SharedMemory
from vox_mesh.store.rows import Rows
from vox_mesh.store.script import Statement
from vox_mesh.testing.harness import IsolatedSettings

START_MS = 1_800_000_000_000


class Line(SharedMemory):
    """One node's way to the memory that all share. While it is cut, nothing gets through."""

    def __init__(self, shared: SharedMemory) -> None:
        self._shared = shared
        self.changes = shared.changes
        self.keys = shared.keys
        self.memories = shared.memories
        self.is_remote = shared.is_remote
        self.is_cut = False
        self.is_mute = False
        """Reads get through, and nothing else: a replica whose primary is away."""

    def _refuse_if_cut(self) -> None:
        if self.is_cut:
            raise CircuitOpen("the line is cut")  # as behind a breaker: no one waits for it

    async def run(self, batch: Batch) -> BatchResult:
        """Run the batch's transaction, unless the line is cut."""
        if self.is_mute:
            raise CircuitOpen("nothing can be written")
        self._refuse_if_cut()
        return await self._shared.run(batch)

    async def query(self, statement: Statement) -> Rows:
        """Answer a query, unless the line is cut."""
        self._refuse_if_cut()
        return await self._shared.query(statement)

    async def close(self) -> None:
        """The memory stays."""


@dataclass
class SkewedNode:
    """A node, and what is wrong with its clock."""

    name: str
    line: Line
    skew_ms: int
    drift: float
    node: MeshNode | None = None
    opening: AbstractAsyncContextManager[MeshNode] | None = None
    since_ms: int = 0
    """Since when it is in touch with the others."""

    @property
    def playing(self) -> MeshNode:
        """The node, which lives."""
        assert self.node is not None
        return self.node


class SkewedNodes:
    """Turns one true time, by which everyone's clock goes, more or less."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.now_ms = START_MS
        self._folder = folder
        self._settings = settings
        self.database_ahead_ms = 0
        self.shared = SharedMemory(lambda: self.now_ms + self.database_ahead_ms)
        self.players: dict[str, SkewedNode] = {}

    def _dependencies(self, player: SkewedNode) -> Dependencies:
        def passed_ms() -> float:
            return (self.now_ms - START_MS) * (1 + player.drift)

        return Dependencies(
            lambda: START_MS + player.skew_ms + int(passed_ms()),
            lambda: passed_ms() / 1_000,
            lambda: 0.5,
            memory=player.line,
            elapsed=lambda: passed_ms() / 1_000,
        )

    async def begin(self, name: str, *, skew_ms: int = 0, drift: float = 0.0, **settings: Any) -> bool:
        """Have a node begin, or begin again; not as long as the others believe that it lives."""
        player = self.players.setdefault(name, SkewedNode(name, Line(self.shared), skew_ms, drift))
        home = self._folder / name
        given: dict[str, Any] = {"node_id": name, "home_dir": home, "http": False, "db_deadline": "1s"}
        chosen = IsolatedSettings(**given, **self._settings, **settings)
        player.opening = Mesh.open(chosen, self._dependencies(player))
        try:
            player.node = await player.opening.__aenter__()
        except NodeInUse:
            return False
        player.since_ms = self.now_ms
        return True

    async def kill(self, name: str) -> None:
        """Have a node end without a word."""
        player = self.players[name]
        node, opening, player.node = player.playing, player.opening, None
        assert opening is not None
        await node.store.close()
        with suppress(MeshError):
            await opening.__aexit__(None, None, None)

    async def leave(self, name: str) -> None:
        """Have a node end as it should."""
        player = self.players[name]
        opening, player.node = player.opening, None
        assert opening is not None
        await opening.__aexit__(None, None, None)

    @property
    def living(self) -> list[SkewedNode]:
        """Those who play."""
        return [player for player in self.players.values() if player.node is not None]

    async def turn(self, by_ms: int) -> None:
        """Have time pass for everyone, and what is due be done."""
        self.now_ms += by_ms
        for player in self.living:
            with suppress(MeshError):
                await player.playing.run_once()
        for player in self.living:
            with suppress(MeshError):
                await player.playing.catch_up()

    def cut_or_mend(self, name: str) -> None:
        """Cut a node off, or have it in touch again."""
        player = self.players[name]
        player.line.is_cut = not player.line.is_cut
        player.since_ms = self.now_ms

    def error_ms(self, player: SkewedNode) -> int:
        """How far from the true time a node takes it to be."""
        return player.playing.clock.now_ms - self.now_ms

    def leaders(self) -> list[str]:
        """Who believes to lead."""
        return [player.name for player in self.living if player.playing.rhythm.is_leader]


@asynccontextmanager
async def orchestra(folder: Path, **settings: Any) -> AsyncIterator[SkewedNodes]:
    """All of it, and its end."""
    built = SkewedNodes(folder, **settings)
    try:
        yield built
    finally:
        for player in built.living:
            player.line.is_cut = False
            await built.kill(player.name)
        await built.shared.close()
