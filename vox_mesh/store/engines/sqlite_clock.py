"""Give a SQLite connection an injected clock instead of the machine's."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from vox_mesh.store.engines import sqlite

_DATE_FUNCTIONS: Final = ("date", "time", "datetime", "julianday", "unixepoch", "strftime")
_NOW: Final = "now"


class SqliteClock:
    """Replaces the date functions: for them, `now` is the time at which the last request began.

    The time is fixed for a whole request, because a statement that reads it twice must get the same value.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._calendar = sqlite.connect(":memory:")  # for calendar arithmetic; its own clock is never used
        self._at_ms = -1
        self._moment = ""
        self._results: dict[tuple[Any, ...], Any] = {}
        """Results at this time: the schema makes the same calls repeatedly."""
        self.begin()

    def begin(self) -> None:
        """Read the clock at the beginning of a request."""
        now_ms = self._now_ms()
        if now_ms != self._at_ms:
            self._at_ms = now_ms
            self._moment = ""
            self._results.clear()

    def install(self, connection: sqlite3.Connection) -> None:
        """Make a connection use this clock."""
        connection.execute("PRAGMA trusted_schema = ON")  # the schema's defaults call these functions
        for name in _DATE_FUNCTIONS:
            # Like SQLite's own date functions, they are constant within a statement.
            connection.create_function(name, -1, partial(self._call, name), deterministic=True)

    def _call(self, name: str, *args: Any) -> Any:
        call = name, *args
        if call not in self._results:
            self._results[call] = self._evaluate(name, args)
        return self._results[call]

    def _evaluate(self, name: str, args: Sequence[Any]) -> Any:
        form, times = (args[:1], args[1:]) if name == "strftime" else ((), args)
        values = [self._now() if str(each).lower() == _NOW else each for each in times or (_NOW,)]
        places = ", ".join("?" * (len(form) + len(values)))
        return self._calendar.execute(f"SELECT {name}({places})", (*form, *values)).fetchone()[0]

    def _now(self) -> str:
        if not self._moment:
            seconds = datetime.fromtimestamp(self._at_ms // 1_000, UTC).replace(tzinfo=None)
            self._moment = f"{seconds.isoformat(' ')}.{self._at_ms % 1_000:03}"
        return self._moment

    def close(self) -> None:
        """Close the internal connection."""
        self._calendar.close()
