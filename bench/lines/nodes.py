"""Lines on nodes: asking who is here in a large mesh, and what a node writes while nothing happens."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from bench.environment import BenchEnvironment
from bench.figures import Figure, Of, at_most
from bench.measure import alternate, median_us
from tools.homes import MESH, MESH_REPLICA
from tools.sqld import Server
from vox_mesh import Mesh, Script, Statement
from vox_mesh.heartbeat.presence import Activity, Presence
from vox_mesh.model.base.backends import ReplicaChoice
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies
from vox_mesh.nodes.identity import temporary_identity

_NODES: Final = 1_000
_AT_ONCE: Final = 250
_TICK_S: Final = 5.0
_MINUTE_S: Final = 60.0
_ENROL: Final = (
    "INSERT INTO node_incarnations (scope_id, repository_id, node_id, incarnation) "
    "SELECT ?, ?, value, 1 FROM json_each(?)"
)


async def live(environment: BenchEnvironment) -> list[Figure]:
    """The live nodes of a mesh of a thousand, as the replica knows them and as the primary does."""
    seconds = environment.pace.seconds
    with Server() as server:
        settings = MESH_REPLICA.settings(environment.folder, server)
        without = settings.model_copy(update={"db_replica": ReplicaChoice.OFF})
        async with Mesh.open(settings) as node, Mesh.open_command(without) as command:
            await _enrol(node)
            await node.store.synced()

            async def ask(mesh: Mesh) -> None:
                found = len(await mesh.nodes.live_nodes_from_db())
                if found <= _NODES:
                    raise RuntimeError(f"only {found} nodes are live")

            sides = {
                "replica": lambda: median_us(lambda: ask(node), seconds),
                "primary": lambda: median_us(lambda: ask(command), seconds),
            }
            found = await alternate(sides, environment.pace.rounds)
    ours, raw = ([each / 1e3 for each in found[side]] for side in ("replica", "primary"))
    what = "live nodes of 1,000, p50: from the replica / from the primary"
    return [Figure("nodes-live", what, "ms", ours, raw, at_most(5.0, Of.OURS))]


async def _enrol(node: MeshNode) -> None:
    """Have a thousand others tick once."""
    store = node.store
    names = [f"node-{number:04}" for number in range(_NODES)]
    quoted = ",".join(f'"{name}"' for name in names)
    await store.write(Script(Statement(_ENROL, (*store.mesh_id, f"[{quoted}]"))))
    activity = Activity("planner", "builds the docs", "http://10.0.0.7:7400", ["build", "test"], 4, 2)
    others = [
        Presence(
            temporary_identity(name),
            store.writer_id,
            node.clock,
            place=name,
            tick_s=_TICK_S,
            activity=activity,
        )
        for name in names
    ]
    for start in range(0, _NODES, _AT_ONCE):
        await store.write_all([other.beat() for other in others[start : start + _AT_ONCE]])


async def writes(environment: BenchEnvironment) -> list[Figure]:
    """What a node writes in a minute in which nothing happens; of two, so that one of them anchors.

    The minute is made shorter, with all that happens in it: the tick, and the clock that says when it ends.
    """
    faster = _MINUTE_S / environment.pace.idle_s
    hurried = Dependencies(monotonic=lambda: time.monotonic() * faster)
    settings = MESH.settings(environment.folder, environment.sqld, tick=f"{_TICK_S * 1e3 / faster:.0f}ms")
    async with Mesh.open(settings, hurried) as one, Mesh.open(settings, hurried) as two:
        before = [node.store.change_count for node in (one, two)]
        await asyncio.sleep(environment.pace.idle_s)
        after = [node.store.change_count for node in (one, two)]
    most = max(late - early for early, late in zip(before, after, strict=True))
    what = "writes of a node in a minute in which nothing happens"
    return [Figure("nodes-writes", what, "1/min", [float(most)], target=at_most(15.0, Of.OURS))]
