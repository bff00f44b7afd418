"""For the tests of those who build on the mesh: a mesh in memory, several nodes in it, a clock to turn.

`Town` is for tests that await; the fixtures of the plugin, `vox_town`, `vox_memory_mesh` and `vox_clock`, are
the same for plain ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vox_mesh.testing.town import Town, TownClock

__all__ = ["Town", "TownClock"]


def __getattr__(name: str) -> Any:
    # Every run of pytest loads the plugin beside this: only those who build a town pay for it.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vox_mesh.testing import town

    return getattr(town, name)
