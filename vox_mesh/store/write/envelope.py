"""Wrap the scripts of one request with further statements of the same transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from vox_mesh.store.script import Statement

CONDITION_VALUES: Final = 4
"""The number of values that a wrapper's condition takes."""


class RequestWrapper(NamedTuple):
    """Statements around the scripts of a request.

    `preface` runs before the scripts: if it fails, nothing is applied. The log entries run after them,
    outside their savepoints, and record each script's verdict; their rows are returned to the interceptor:
    `accepted` is used if all scripts have succeeded by then, `verdicts` if some may have failed. `condition`
    is the equivalent of the preface for a request of a single statement; its values are `?3` to `?6` and the
    two times that `EARLIEST` and `LATEST` stand for.
    """

    preface: tuple[Statement, ...] = ()
    accepted: Statement | None = None
    verdicts: Callable[[], Statement | None] = lambda: None
    condition: Statement | None = None


NO_WRAPPER: Final = RequestWrapper()


class StaleWrapper(Exception):
    """The wrapper no longer matches the database. Nothing was applied; the request must be bound again."""
