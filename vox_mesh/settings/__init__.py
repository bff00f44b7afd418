"""Settings: the `VOX_*` variables, secrets, and the `.env` file of a folder."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vox_mesh.settings.fields import EXAMPLES
    from vox_mesh.settings.settings import Settings, load_process_settings, load_settings, variable_of

__all__ = ["EXAMPLES", "Settings", "load_process_settings", "load_settings", "variable_of"]


def __getattr__(name: str) -> Any:
    """Load the settings when first asked for: a process removes its secrets from its environment before."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "fields" if name == "EXAMPLES" else "settings"
    globals()[name] = found = getattr(import_module(f"vox_mesh.settings.{module}"), name)
    return found
