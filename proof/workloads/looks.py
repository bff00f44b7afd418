"""Looks at who is here."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from proof.scene import Part, Scene
from vox_mesh import MeshError


async def act(scene: Scene) -> None:
    """Look now and then, and note how each node stands."""
    while not scene.over.is_set():
        with suppress(MeshError):
            since = scene.recorder.now()
            states = {node.node_id: node.state for node in await scene.mesh.nodes.all()}
            scene.recorder.note("nodes.seen", since=since, states=states)
        await scene.rest(scene.pace.tick_s * (0.5 + scene.chance.random()))


LOOKS: Final = Part("looks", act)
