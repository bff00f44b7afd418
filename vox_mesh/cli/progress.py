"""A progress bar on stderr, where somebody is looking."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

import click


class ProgressBar:
    """Drawn from the first time that there is something to do; without a terminal, not at all."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._start = 0
        self._done = 0

    def show(self, done: int, total: int) -> None:
        """So much is done, of so much; what was done before the first call does not count."""
        if self._bar is None:
            if done >= total or not sys.stderr.isatty():
                return
            self._start = self._done = done
            self._bar = click.progressbar(length=total - done, label="copying", file=sys.stderr)
        self._bar.length = max(1, total - self._start)
        self._bar.update(done - self._done)
        self._done = done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.render_finish()
