"""Warnings about public names that were replaced and keep working for one release."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

_PACKAGE: Final = __name__.partition(".")[0]


def warn_renamed(old: str, new: str) -> None:
    """Warn that a name was replaced; the warning names the line outside of this package that used it."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        level, frame = level + 1, frame.f_back
    warnings.warn(f"{old} is deprecated: use {new}", DeprecationWarning, stacklevel=level)


class RenamedAttributes:
    """Gives the attributes of a class under their old names, too: `_RENAMED` has old and new names."""

    _RENAMED: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # a type checker knows the new names only

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            if name not in self._RENAMED:
                raise AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=self)
            new = self._RENAMED[name]
            warn_renamed(f"{kind}.{name}", f"{kind}.{new}")
            return getattr(self, new)
