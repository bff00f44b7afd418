"""For tests of code that uses the mesh: a mesh in memory, with several nodes and a clock you advance.

`MeshHarness` is for tests that await. Plain tests use the fixtures of the pytest plugin: `vox_mesh_harness`,
`vox_memory_mesh` and `vox_manual_clock`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from vox_mesh.testing.harness import ManualClock, MeshHarness

    Town = MeshHarness
    TownClock = ManualClock

__all__ = ["ManualClock", "MeshHarness"]

_DEPRECATED: Final = {"Town": "MeshHarness", "TownClock": "ManualClock"}


def __getattr__(name: str) -> Any:
    # Every run of pytest imports this package with the plugin: the harness is imported only when it is used.
    new_name = _DEPRECATED.get(name, name)
    if new_name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vox_mesh.observability.deprecation import warn_renamed
    from vox_mesh.testing import harness

    if name != new_name:
        warn_renamed(f"{__name__}.{name}", f"{__name__}.{new_name}")
    return getattr(harness, new_name)
