"""Deprecated: import `log_fields` from `vox_mesh`."""

from __future__ import annotations

from typing import Any

from vox_mesh.observability import log_context
from vox_mesh.observability.deprecation import warn_renamed


def __getattr__(name: str) -> Any:
    if not hasattr(log_context, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_renamed(__name__, "vox_mesh.log_fields")
    return getattr(log_context, name)
