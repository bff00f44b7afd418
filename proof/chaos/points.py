"""Named places in the code at which a player can be told to kill itself, as `kill -9` would."""

from __future__ import annotations

import os
import signal
import sqlite3
from enum import StrEnum
from typing import Any, Final

from proof.history import Recorder
from proof.outside import Outside
from vox_mesh.store.batch import Batch, BatchResult
from vox_mesh.store.engines import sqlite
from vox_mesh.store.engines.file import FileEngine
from vox_mesh.store.replica.mark import Mark
from vox_mesh.store.spool.spool import Spool
from vox_mesh.store.stats import CountedEngine
from vox_mesh.store.store import Store


class Point(StrEnum):
    """Where it happens."""

    UNSENT = "before the request"
    COMMITTED = "after the commit, before the answer"
    ANSWERED = "after the answer, before its caller acts on it"
    BEFORE_EFFECT = "before the effect outside"
    AFTER_EFFECT = "after the effect outside"
    IN_TRANSACTION = "in the middle of a transaction"
    KEPT = "after a write went to the spool, before the answer"
    REPLAYED = "in the middle of a replay of the spool"
    APPLIED = "after a replica's pages, before its mark"


_EVERYWHERE: Final = (
    *(Point.UNSENT, Point.COMMITTED, Point.ANSWERED),
    *(Point.BEFORE_EFFECT, Point.AFTER_EFFECT),
)
ON_FILE: Final = (*_EVERYWHERE, Point.IN_TRANSACTION)
ON_SERVER: Final = (*_EVERYWHERE, Point.KEPT, Point.REPLAYED, Point.APPLIED)


class Points:
    """Knows at which point this process is to die, if at any. It is the only one in its process."""

    def __init__(self) -> None:
        self.wanted: Point | None = None

    def reached(self, point: Point) -> None:
        """Whoever was told to die here does not come back from this."""
        if point is self.wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        """Have the classes of the store, in this process, tell what they reach."""
        self._around_requests(FileEngine)
        self._around_requests(CountedEngine)
        self._after(Store, "write", Point.ANSWERED)
        self._after(Store, "write_all", Point.ANSWERED)
        self._beside(Spool, "keep", after=Point.KEPT)
        self._beside(Spool, "finish", before=Point.REPLAYED)
        self._beside(Mark, "update", before=Point.APPLIED)
        self._before_commits()

    def _around_requests(self, engine: type[FileEngine] | type[CountedEngine]) -> None:
        run: Any = engine.run

        async def told(this: Any, batch: Batch) -> BatchResult:
            self.reached(Point.UNSENT)
            result: BatchResult = await run(this, batch)
            self.reached(Point.COMMITTED)
            return result

        setattr(engine, "run", told)  # noqa: B010 - a method of a class, for all of its objects

    def _after(self, owner: type, name: str, point: Point) -> None:
        method = getattr(owner, name)

        async def told(*given: Any, **named: Any) -> Any:
            result = await method(*given, **named)
            self.reached(point)
            return result

        setattr(owner, name, told)

    def _beside(
        self, owner: type, name: str, before: Point | None = None, after: Point | None = None
    ) -> None:
        method = getattr(owner, name)

        def told(*given: Any, **named: Any) -> Any:
            if before is not None:
                self.reached(before)
            result = method(*given, **named)
            if after is not None:
                self.reached(after)
            return result

        setattr(owner, name, told)

    def _before_commits(self) -> None:
        walk = sqlite.walk

        def told(connection: sqlite3.Connection, *given: Any, **named: Any) -> BatchResult:
            if self.wanted is Point.IN_TRANSACTION:
                connection.set_trace_callback(self._hear_statement)
            return walk(connection, *given, **named)

        sqlite.walk = told

    def _hear_statement(self, sql: str) -> None:
        if sql.startswith("COMMIT"):
            self.reached(Point.IN_TRANSACTION)


class PointedOutside:
    """The world outside, for a player that may have to die before or after it changes that."""

    def __init__(self, outside: Outside, points: Points) -> None:
        self._outside = outside
        self._points = points

    def write(self, recorder: Recorder, key: str, token: int) -> bool:
        """Write under a token; whether it was taken."""
        self._points.reached(Point.BEFORE_EFFECT)
        taken = self._outside.write(recorder, key, token)
        self._points.reached(Point.AFTER_EFFECT)
        return taken

    def effect(self, recorder: Recorder, key: str) -> None:
        """Have an effect that must be had once for each key."""
        self._points.reached(Point.BEFORE_EFFECT)
        self._outside.effect(recorder, key)
        self._points.reached(Point.AFTER_EFFECT)
