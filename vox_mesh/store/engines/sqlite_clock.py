"""Another clock for a SQLite connection than the machine's, for those who must be able to turn it."""

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
    """Replaces the date functions: what they call now is the moment at which the last request began.

    One moment for the whole request, because a statement that asks twice must be told the same.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._plain = sqlite.connect(":memory:")  # knows the calendar; its own time is never asked for
        self._at_ms = -1
        self._moment = ""
        self._told: dict[tuple[Any, ...], Any] = {}
        """What was answered at this moment: the schema asks the same over and over."""
        self.begin()

    def begin(self) -> None:
        """A request begins: look at the clock."""
        now_ms = self._now_ms()
        if now_ms != self._at_ms:
            self._at_ms = now_ms
            self._moment = ""
            self._told.clear()

    def install(self, connection: sqlite3.Connection) -> None:
        """Have a connection go by this clock."""
        connection.execute("PRAGMA trusted_schema = ON")  # the schema's defaults call these functions
        for name in _DATE_FUNCTIONS:
            # To SQLite this is a function that is constant within a statement, as its own are.
            connection.create_function(name, -1, partial(self._call, name), deterministic=True)

    def _call(self, name: str, *given: Any) -> Any:
        asked = name, *given
        if asked not in self._told:
            self._told[asked] = self._answer(name, given)
        return self._told[asked]

    def _answer(self, name: str, given: Sequence[Any]) -> Any:
        form, times = (given[:1], given[1:]) if name == "strftime" else ((), given)
        values = [self._now() if str(each).lower() == _NOW else each for each in times or (_NOW,)]
        places = ", ".join("?" * (len(form) + len(values)))
        return self._plain.execute(f"SELECT {name}({places})", (*form, *values)).fetchone()[0]

    def _now(self) -> str:
        if not self._moment:
            seconds = datetime.fromtimestamp(self._at_ms // 1_000, UTC).replace(tzinfo=None)
            self._moment = f"{seconds.isoformat(' ')}.{self._at_ms % 1_000:03}"
        return self._moment

    def close(self) -> None:
        """Let go of what it needed."""
        self._plain.close()
