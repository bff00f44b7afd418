"""Named points in the code at which a node can be ordered to kill itself, as `kill -9` would."""

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
    """The point at which this process is to die, if any. There is one instance in a process."""

    def __init__(self) -> None:
        self.wanted: Point | None = None

    def reach(self, point: Point) -> None:
        """Kill this process if it was ordered to die at this point."""
        if point is self.wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self) -> None:
        """Instrument the classes of the store, in this process."""
        self._around_requests(FileEngine)
        self._around_requests(CountedEngine)
        self._after(Store, "write", Point.ANSWERED)
        self._after(Store, "write_all", Point.ANSWERED)
        self._around_call(Spool, "keep", after=Point.KEPT)
        self._around_call(Spool, "finish", before=Point.REPLAYED)
        self._around_call(Mark, "update", before=Point.APPLIED)
        self._before_commits()

    def _around_requests(self, engine: type[FileEngine] | type[CountedEngine]) -> None:
        run: Any = engine.run

        async def wrapper(this: Any, batch: Batch) -> BatchResult:
            self.reach(Point.UNSENT)
            result: BatchResult = await run(this, batch)
            self.reach(Point.COMMITTED)
            return result

        setattr(engine, "run", wrapper)  # noqa: B010 - a method of a class, for all of its objects

    def _after(self, owner: type, name: str, point: Point) -> None:
        method = getattr(owner, name)

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = await method(*args, **kwargs)
            self.reach(point)
            return result

        setattr(owner, name, wrapper)

    def _around_call(
        self, owner: type, name: str, before: Point | None = None, after: Point | None = None
    ) -> None:
        method = getattr(owner, name)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                self.reach(before)
            result = method(*args, **kwargs)
            if after is not None:
                self.reach(after)
            return result

        setattr(owner, name, wrapper)

    def _before_commits(self) -> None:
        walk = sqlite.walk

        def wrapper(connection: sqlite3.Connection, *args: Any, **kwargs: Any) -> BatchResult:
            if self.wanted is Point.IN_TRANSACTION:
                connection.set_trace_callback(self._on_statement)
            return walk(connection, *args, **kwargs)

        sqlite.walk = wrapper

    def _on_statement(self, sql: str) -> None:
        if sql.startswith("COMMIT"):
            self.reach(Point.IN_TRANSACTION)


class OutsideWithPoints:
    """The outside resource, for a process that may have to die before or after it writes there."""

    def __init__(self, outside: Outside, points: Points) -> None:
        self.folder = outside.folder
        self._outside = outside
        self._points = points

    def write(self, recorder: Recorder, key: str, token: int) -> bool:
        """Write under a token; return whether it was accepted."""
        self._points.reach(Point.BEFORE_EFFECT)
        taken = self._outside.write(recorder, key, token)
        self._points.reach(Point.AFTER_EFFECT)
        return taken

    def effect(self, recorder: Recorder, key: str) -> None:
        """Have an effect that must happen once for each key."""
        self._points.reach(Point.BEFORE_EFFECT)
        self._outside.effect(recorder, key)
        self._points.reach(Point.AFTER_EFFECT)
