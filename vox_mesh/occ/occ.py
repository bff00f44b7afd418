"""Optimistic writes: compare and write in one script, and whoever loses a race is told, never skipped.

*Left* is what a caller wants to write, *right* what somebody else has written since the caller has read.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
)

from vox_mesh.errors import BadValue, Contended, OutcomeUnknown
from vox_mesh.model.base.ulid import derived, is_ulid
from vox_mesh.model.occ.merge import Columns, differing, three_way
from vox_mesh.occ.conflicts import Conflict, Conflicts
from vox_mesh.occ.strategies import (
    ConflictRecorded,
    DeferToAgent,
    Manual,
    Merge,
    Merged,
    Result,
    Skipped,
    Strategy,
    TakeLeft,
    TakeRight,
    Written,
    check_strategy,
)
from vox_mesh.occ.tables import WRITTEN_AT, RowAddress
from vox_mesh.occ.versions import Versions
from vox_mesh.store.script import Answer, Script, Statement, new_key

T = TypeVar("T")

_log = logging.getLogger(__name__)

TRIES: Final = 1_000
PATIENCE_S: Final = 30.0
_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.064

Notify = Callable[[Conflict], Awaitable[None]]
"""Tells an agent of a conflict that was deferred to it."""

_TAKE_RIGHT: Final = TakeRight()
_WRITE: Final = "write"


@dataclass(frozen=True, slots=True)
class _Sides:
    """The three sides of a conflict, at a row's place, and who wants the left one."""

    place: RowAddress
    base: dict[str, Any] | None
    left: dict[str, Any]
    right: dict[str, Any] | None
    agent: str | None


class _Keys:
    """The keys of all scripts that a write may take: the same ones, in the same order, if it comes again."""

    def __init__(self, first: str | None) -> None:
        if first is not None and not is_ulid(first):
            raise BadValue(f"the key {first!r} is not a ULID")
        self.is_given = first is not None
        self.first = new_key() if first is None else first
        self.attempt = 1

    def of(self, purpose: str) -> str:
        """The key for one purpose in this attempt."""
        is_first = purpose == _WRITE and self.attempt == 1
        return self.first if is_first else derived(self.first, f"{purpose} {self.attempt}")


class Occ:
    """Writes rows of tables that have a column `written_at`.

    Whoever changes such a row in another way must change its `written_at` too, or is not noticed.
    """

    def __init__(
        self,
        versions: Versions,
        conflicts: Conflicts,
        *,
        chance: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._versions = versions
        self._conflicts = conflicts
        self._chance = chance
        self._sleep = sleep
        self.counts: Counter[tuple[str, str]] = Counter()
        """How many conflicts there were, by table and by what became of them."""
        self.notify: Notify | None = None

    async def read(self, table: str, key: Columns) -> dict[str, Any] | None:
        """The row as it is now, with its `written_at`, as a base for `write`; `None` if there is none."""
        return await self._versions.look(await self._versions.place(table, key))

    async def write(
        self,
        table: str,
        key: Columns,
        values: Columns,
        base: Columns | None,
        *,
        strategy: Strategy = _TAKE_RIGHT,
        agent: str | None = None,
        script_key: str | None = None,
        tries: int = TRIES,
        patience: float = PATIENCE_S,
    ) -> Result:
        """Write these columns of a row if it is still `base`, or (`None`) still not there.

        Otherwise the strategy decides: on the row as it is then, and again if that moves meanwhile. `agent`
        is on whose behalf it is written. After an `OutcomeUnknown` it may be sent again with the error's key
        as `script_key`: it takes effect once.
        """
        check_strategy(strategy)
        place = await self._versions.place(table, key, values, base)
        origin = place.base(base)
        new = place.values(values, origin)
        keys = _Keys(script_key)

        async def attempt() -> Result:
            done = await self._put(place, new, origin, keys, _WRITE)
            if done is not None:
                return Written(done)
            right = await self._versions.look(place)
            if _is_version(right, origin):
                raise _contended(place)  # it came back; the next attempt finds it as it was
            left = {**({} if origin is None else place.bare(origin)), **new}
            return await self._settle(
                strategy, _Sides(place, origin, left, right, agent or self._versions.agent), keys
            )

        try:
            return await self._tried(attempt, keys, tries, patience)
        except OutcomeUnknown as error:
            error.key = keys.first  # whichever of its scripts it was
            raise
        except Contended:
            self.counts[table, "given up"] += 1
            raise

    async def update(
        self,
        table: str,
        key: Columns,
        fn: Callable[[dict[str, Any] | None], Columns | None],
        *,
        script_key: str | None = None,
        tries: int = TRIES,
        patience: float = PATIENCE_S,
    ) -> Written | None:
        """Read a row (`None`: there is none), write what `fn` makes of it, and begin again if it has moved.

        `fn` is called once for each try, and must have no other effect; when it returns `None`, nothing is
        written, and nothing returned. Sent again with a `script_key`, it sees the row as it is now: also as
        the first call has left it.
        """
        keys = _Keys(script_key)

        async def attempt() -> Written | None:
            place = await self._versions.place(table, key)
            base = await self._versions.look(place)
            values = fn(None if base is None else dict(base))
            if values is None:
                return None
            place = await self._versions.place(table, key, values)
            done = await self._put(place, place.values(values, base), base, keys, _WRITE)
            if done is None:
                self.counts[table, "retried"] += 1
                raise _contended(place)
            return Written(done)

        return await self._tried(attempt, keys, tries, patience)

    # --- conflicts -------------------------------------------------------------------------------

    async def _settle(self, strategy: Strategy, sides: _Sides, keys: _Keys) -> Result:
        """Do as the strategy says about a conflict."""
        place, right = sides.place, sides.right
        match strategy:
            case TakeRight():
                return self._counted(place, "skipped", Skipped(right))
            case TakeLeft():
                done = await self._put(place, sides.left, right, keys, "left")
                if done is None:
                    raise _contended(place)
                return self._counted(place, "overwritten", Written(done, overwritten=right))
            case Merge(below):
                merged = await self._merge(sides, keys)
                if merged is None:
                    return await self._settle(below, sides, keys)
                return self._counted(place, "merged", merged)
            case Manual() | DeferToAgent():
                return self._counted(place, "recorded", await self._record(strategy, sides, keys))

    def _counted(self, place: RowAddress, what: str, result: Result) -> Result:
        self.counts[place.table.name, what] += 1
        return result

    async def _merge(self, sides: _Sides, keys: _Keys) -> Merged | None:
        """Write the merge of both sides; `None` if there is none."""
        place, right = sides.place, sides.right
        if right is None:
            return None
        row, clashes = three_way(sides.base, sides.left, place.bare(right))
        if clashes:
            return None
        changes = differing(row, right)
        if not changes:
            return Merged(right, right)
        done = await self._put(place, changes, right, keys, "merge")
        if done is None:
            raise _contended(place)
        return Merged({**right, **changes, WRITTEN_AT: done}, right)

    async def _record(self, strategy: Manual | DeferToAgent, sides: _Sides, keys: _Keys) -> ConflictRecorded:
        place = sides.place
        deferred_to = strategy.agent if isinstance(strategy, DeferToAgent) else None
        conflict_id = new_key()
        statement = self._conflicts.record(
            conflict_id,
            place,
            (sides.base, sides.left, sides.right),
            agent=sides.agent,
            strategy=type(strategy).__name__,
            deferred_to=deferred_to,
        )
        recorded = await self._send(place, statement, conflict_id, keys, "record")
        if recorded is None:
            raise _contended(place)
        if deferred_to is not None and self.notify is not None:
            try:
                await self.notify(await self._conflicts.find(recorded))
            except Exception:  # it is recorded all the same
                _log.exception("%s was not told of the conflict %s", deferred_to, recorded)
        return ConflictRecorded(recorded, sides.right)

    # --- writing ---------------------------------------------------------------------------------

    async def _put(
        self, place: RowAddress, values: Columns, over: Columns | None, keys: _Keys, purpose: str
    ) -> str | None:
        """Write values over a version of the row; the new version, or `None` if the row is another now."""
        written_at = await self._versions.next(over)
        return await self._send(place, place.put(values, over, written_at), written_at, keys, purpose)

    async def _send(
        self, place: RowAddress, statement: Statement, name: str, keys: _Keys, purpose: str
    ) -> str | None:
        """Apply a statement that changes a row or none; the name of the change, if there was one.

        Sent again, it answers with the name of the first time.
        """
        answer = Answer("SELECT changes(), ?", (name,), ("changed", "name"))
        script = Script(statement, answer=answer, key=keys.of(purpose))
        script.may_come_again = keys.is_given  # one of our own making comes only after `OutcomeUnknown`
        changed, named = (await self._versions.send(place, script)).rows[0]
        return str(named) if changed else None

    async def _tried(
        self, attempt: Callable[[], Awaitable[T]], keys: _Keys, tries: int, patience: float
    ) -> T:
        """Attempt until the row no longer moves between being looked at and being written."""
        async for turn in AsyncRetrying(
            retry=retry_if_exception_type(Contended),
            stop=stop_after_attempt(tries) | stop_after_delay(patience),
            wait=self._pause,
            sleep=self._sleep,
            reraise=True,
        ):
            with turn:
                keys.attempt = turn.retry_state.attempt_number
                return await attempt()
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _pause(self, state: RetryCallState) -> float:
        """By chance up to 1 ms, doubled with each attempt: those who contend come apart."""
        longest = _PAUSE_S * (1 << min(state.attempt_number, 16))
        return self._chance() * min(longest, _LONGEST_PAUSE_S)


def _is_version(row: Columns | None, other: Columns | None) -> bool:
    if row is None or other is None:
        return row is other
    return bool(row[WRITTEN_AT] == other[WRITTEN_AT])


def _contended(place: RowAddress) -> Contended:
    return Contended(
        f"others wrote {place.row_key} of {place.table.name} each time this was tried",
        hint="try again later, or have fewer write the same row",
    )
