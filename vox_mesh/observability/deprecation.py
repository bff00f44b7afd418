"""Warnings about public names that were replaced and keep working for one release."""

from __future__ import annotations

import inspect
import warnings
from typing import Final

_PACKAGE: Final = __name__.partition(".")[0]


def warn_renamed(old: str, new: str) -> None:
    """Warn that a name was replaced; the warning names the line outside of this package that used it."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        level, frame = level + 1, frame.f_back
    warnings.warn(f"{old} is deprecated: use {new}", DeprecationWarning, stacklevel=level)
