"""A frame: what stands around the scripts of one request, in its transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from vox_mesh.store.script import Statement

CONDITION_VALUES: Final = 4
"""How many values a frame's condition takes."""


class RequestWrapper(NamedTuple):
    """`preface` runs before the scripts: should it fail, nothing is applied. The entries follow them.

    They note, outside the scripts' savepoints, what became of each, and their rows go back to the journal:
    `accepted` where all scripts have succeeded by then, `verdicts` where some may have failed. `condition`
    says the same as the preface, for a statement that is a request by itself; it is given `?3` to `?6`, and
    two more values: the times that `EARLIEST` and `LATEST` stand for.
    """

    preface: tuple[Statement, ...] = ()
    accepted: Statement | None = None
    verdicts: Callable[[], Statement | None] = lambda: None
    condition: Statement | None = None


NO_FRAME: Final = RequestWrapper()


class StaleWrapper(Exception):
    """The frame no longer fits the database, so nothing was applied: it must be made anew."""
