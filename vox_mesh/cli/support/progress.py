"""A progress bar on stderr, where somebody is looking."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

import click


class ProgressBar:
    """Drawn from the first time that there is something to do; without a terminal, not at all."""

    def __init__(self, label: str = "copying") -> None:
        self._label = label
        self._bar: Any = None
        self._start = 0
        self._done = 0

    def show(self, done: int, total: int) -> None:
        """So much is done, of so much; what was done before the first call does not count."""
        if self._bar is None:
            if done >= total or not sys.stderr.isatty():
                return
            self._start = self._done = done
            self._bar = click.progressbar(length=total - done, label=self._label, file=sys.stderr)
            self._bar.render_progress()  # also if nothing comes for a while
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
