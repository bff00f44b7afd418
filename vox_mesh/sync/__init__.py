"""The mesh for plain scripts: `with Mesh.open() as mesh`, and every call blocks until it is done.

There is nothing here but a way to the async mesh, which runs in an event loop in a thread of its own: what is
awaited there blocks here, `async with` is `with`, and `async for` is `for`.
"""

from __future__ import annotations

from vox_mesh.sync.blocking import Blocking
from vox_mesh.sync.loop_thread import timeout
from vox_mesh.sync.opening import Mesh, opened

__all__ = ["Mesh", "MeshNode", "Town", "TownClock", "opened", "timeout"]

# For annotations: to a type checker these are different classes, which the stub beside this describes.
MeshNode = Town = TownClock = Blocking
