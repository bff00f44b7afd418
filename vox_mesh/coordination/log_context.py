"""Deprecated: import `log_fields` from `vox_mesh`."""

from __future__ import annotations

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    from vox_mesh.observability import log_context

    if not hasattr(log_context, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        "vox_mesh.coordination.log_context is deprecated: import log_fields from vox_mesh",
        DeprecationWarning,
        stacklevel=2,
    )
    return getattr(log_context, name)
