"""Options of a hook: how it was installed."""

from __future__ import annotations

from typing import NamedTuple


class HookOptions(NamedTuple):
    """How a hook was installed."""

    auto: bool = False
    """Whether free paths are locked for the agent before it edits them."""

    strict: bool = False
    """Whether it denies where the mesh can't answer."""

    project: str = ""
    """The absolute path of the project; by default, that of the folder in which the host works."""
