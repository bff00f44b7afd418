"""Hold off the readers of a copy in other processes while its pages change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class OtherReaders(Protocol):
    """The readers of a copy in other processes."""

    def try_exclude(self) -> bool:
        """Hold them off if none is reading. Return whether they are held off."""

    async def exclude(self, announce: Callable[[], None]) -> None:
        """Hold them off, once their reads have ended. `announce` asks them to begin no others."""

    def admit(self) -> None:
        """Let them read again."""


class NoOtherReaders:
    """A copy that belongs to one process."""

    def try_exclude(self) -> bool:
        """Return that there is nothing to hold off."""
        return True

    async def exclude(self, announce: Callable[[], None]) -> None:
        """Do nothing."""

    def admit(self) -> None:
        """Do nothing."""
