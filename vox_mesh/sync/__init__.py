"""The mesh for plain scripts: `with Mesh.open() as mesh`, and every call blocks until it is done.

There is nothing here but a way to the async mesh, which runs in an event loop in a thread of its own: what is
awaited there blocks here, `async with` is `with`, and `async for` is `for`.
"""

from __future__ import annotations

import warnings
from typing import Any, Final

from vox_mesh.sync.blocking import Blocking
from vox_mesh.sync.loop_thread import timeout
from vox_mesh.sync.opening import Mesh, opened

__all__ = ["ManualClock", "Mesh", "MeshHarness", "MeshNode", "opened", "timeout"]

# For annotations: to a type checker these are different classes, described in the stub `__init__.pyi`.
MeshNode = MeshHarness = ManualClock = Blocking

_DEPRECATED: Final = {"Town": "MeshHarness", "TownClock": "ManualClock"}


def __getattr__(name: str) -> Any:
    if name not in _DEPRECATED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        f"vox_mesh.sync.{name} is deprecated: use {_DEPRECATED[name]}", DeprecationWarning, stacklevel=2
    )
    return Blocking
