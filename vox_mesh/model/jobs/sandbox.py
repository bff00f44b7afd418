"""The choice of the sandbox that command jobs run in."""

from __future__ import annotations

from enum import StrEnum


class Sandbox(StrEnum):
    """Where command jobs run: `auto` takes bubblewrap if it is installed and works."""

    AUTO = "auto"
    BWRAP = "bwrap"
    OFF = "off"
