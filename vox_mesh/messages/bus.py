"""Deprecated: use `mesh.messages`, a `vox_mesh.messages.messages.Messages`."""

from __future__ import annotations

from typing import Any

from vox_mesh.messages import messages
from vox_mesh.observability.deprecation import warn_renamed


def __getattr__(name: str) -> Any:
    new = "Messages" if name == "Bus" else name
    if new.startswith("_") or not hasattr(messages, new):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_renamed(f"{__name__}.{name}", f"{messages.__name__}.{new}")
    return getattr(messages, new)
