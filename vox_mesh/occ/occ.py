"""Optimistic writes: compare and write in one script; every conflict is reported to the caller.

*Left* is the row that the caller wants to write, *right* the row that was written since the caller's read.
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
from vox_mesh.model.base.durations import Duration, seconds_of
from vox_mesh.model.base.ulid import derive_ulid, is_ulid
from vox_mesh.model.occ.merge import Columns, changed_columns, three_way
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
_FIRST_PAUSE_S: Final = 0.001
_MAX_PAUSE_S: Final = 0.064

Notify = Callable[[Conflict], Awaitable[None]]
"""Notifies an agent of a conflict that was deferred to it."""

_TAKE_RIGHT: Final = TakeRight()
_WRITE: Final = "write"


@dataclass(frozen=True, slots=True)
class _Sides:
    """The three sides of a conflict, the address of its row, and the agent that wants the left one."""

    address: RowAddress
    base: dict[str, Any] | None
    left: dict[str, Any]
    right: dict[str, Any] | None
    agent: str | None


class _Keys:
    """The idempotency keys of all scripts of a write: the same in the same order if it is retried."""

    def __init__(self, first: str | None) -> None:
        if first is not None and not is_ulid(first):
            raise BadValue(f"key must be a ULID, got {first!r}", hint="pass a new ULID, or no key")
        self.is_given = first is not None
        self.first = new_key() if first is None else first
        self.attempt = 1

    def key_for(self, purpose: str) -> str:
        """Return the key for one purpose in this attempt."""
        is_first = purpose == _WRITE and self.attempt == 1
        return self.first if is_first else derive_ulid(self.first, f"{purpose} {self.attempt}")


class Occ:
    """Write rows of tables that have a column `written_at`.

    Every other writer of such a row must change its `written_at` too: otherwise its change is not noticed.
    """

    def __init__(
        self,
        versions: Versions,
        conflicts: Conflicts,
        *,
        notify: Notify,
        chance: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._versions = versions
        self._conflicts = conflicts
        self._notify = notify
        self._chance = chance
        self._sleep = sleep
        self.counts: Counter[tuple[str, str]] = Counter()
        """The number of conflicts, by table and outcome."""

    async def read(self, table: str, key: Columns) -> dict[str, Any] | None:
        """Return the current row with its `written_at`, as a base for `write`; `None` if there is none."""
        return await self._versions.read(await self._versions.locate(table, key))

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
        patience: Duration = PATIENCE_S,
    ) -> Result:
        """Write these columns of a row if it is still `base`, or (`None`) still absent.

        Otherwise the strategy decides on the current row, and again if that changes meanwhile. `agent`: on
        whose behalf it is written. After an `OutcomeUnknown` the write may be retried with the error's key as
        `script_key`: it takes effect once.
        """
        check_strategy(strategy)
        address = await self._versions.locate(table, key, values, base)
        origin = address.base(base)
        new = address.values(values, origin)
        keys = _Keys(script_key)

        async def attempt() -> Result:
            done = await self._put(address, new, origin, keys, _WRITE)
            if done is not None:
                return Written(done)
            right = await self._versions.read(address)
            if _is_version(right, origin):
                raise _contended_error(address)  # it is back: the next attempt finds it unchanged
            left = {**({} if origin is None else address.bare(origin)), **new}
            return await self._settle(
                strategy, _Sides(address, origin, left, right, agent or self._versions.agent), keys
            )

        try:
            return await self._retry(attempt, keys, tries, patience)
        except OutcomeUnknown as error:
            error.key = keys.first  # for any of its scripts
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
        patience: Duration = PATIENCE_S,
    ) -> Written | None:
        """Read a row (`None`: absent), write the result of `fn`, and start over if the row has changed.

        `fn` is called once per attempt, and must have no other effect. If it returns `None`, nothing is
        written, and `None` is returned. A retry with a `script_key` sees the current row, possibly as the
        first call has left it.
        """
        keys = _Keys(script_key)

        async def attempt() -> Written | None:
            address = await self._versions.locate(table, key)
            base = await self._versions.read(address)
            values = fn(None if base is None else dict(base))
            if values is None:
                return None
            address = await self._versions.locate(table, key, values)
            done = await self._put(address, address.values(values, base), base, keys, _WRITE)
            if done is None:
                self.counts[table, "retried"] += 1
                raise _contended_error(address)
            return Written(done)

        return await self._retry(attempt, keys, tries, patience)

    # --- conflicts -------------------------------------------------------------------------------

    async def _settle(self, strategy: Strategy, sides: _Sides, keys: _Keys) -> Result:
        """Apply the strategy to a conflict."""
        address, right = sides.address, sides.right
        match strategy:
            case TakeRight():
                return self._count(address, "skipped", Skipped(right))
            case TakeLeft():
                done = await self._put(address, sides.left, right, keys, "left")
                if done is None:
                    raise _contended_error(address)
                return self._count(address, "overwritten", Written(done, overwritten=right))
            case Merge(below):
                merged = await self._merge(sides, keys)
                if merged is None:
                    return await self._settle(below, sides, keys)
                return self._count(address, "merged", merged)
            case Manual() | DeferToAgent():
                return self._count(address, "recorded", await self._record(strategy, sides, keys))

    def _count(self, address: RowAddress, what: str, result: Result) -> Result:
        self.counts[address.table.name, what] += 1
        return result

    async def _merge(self, sides: _Sides, keys: _Keys) -> Merged | None:
        """Write the merge of both sides; return `None` if they clash."""
        address, right = sides.address, sides.right
        if right is None:
            return None
        row, clashes = three_way(sides.base, sides.left, address.bare(right))
        if clashes:
            return None
        changes = changed_columns(row, right)
        if not changes:
            return Merged(right, right)
        done = await self._put(address, changes, right, keys, "merge")
        if done is None:
            raise _contended_error(address)
        return Merged({**right, **changes, WRITTEN_AT: done}, right)

    async def _record(self, strategy: Manual | DeferToAgent, sides: _Sides, keys: _Keys) -> ConflictRecorded:
        address = sides.address
        deferred_to = strategy.agent if isinstance(strategy, DeferToAgent) else None
        conflict_id = new_key()
        statement = self._conflicts.record(
            conflict_id,
            address,
            (sides.base, sides.left, sides.right),
            agent=sides.agent,
            strategy=type(strategy).__name__,
            deferred_to=deferred_to,
        )
        recorded = await self._send(address, statement, conflict_id, keys, "record")
        if recorded is None:
            raise _contended_error(address)
        if deferred_to is not None:
            try:
                await self._notify(await self._conflicts.find(recorded))
            except Exception:  # the conflict is recorded anyway
                _log.exception("conflict notification failed: agent=%s conflict_id=%s", deferred_to, recorded)
        return ConflictRecorded(recorded, sides.right)

    # --- writing ---------------------------------------------------------------------------------

    async def _put(
        self, address: RowAddress, values: Columns, over: Columns | None, keys: _Keys, purpose: str
    ) -> str | None:
        """Write values over a version of the row. Return the new version, or `None` if the row changed."""
        written_at = await self._versions.next(over)
        return await self._send(address, address.put(values, over, written_at), written_at, keys, purpose)

    async def _send(
        self, address: RowAddress, statement: Statement, name: str, keys: _Keys, purpose: str
    ) -> str | None:
        """Apply a statement that changes one row or none. Return the name of the change, if there was one.

        When retried, it returns the name of the first time.
        """
        answer = Answer("SELECT changes(), ?", (name,), ("changed", "name"))
        script = Script(statement, answer=answer, key=keys.key_for(purpose))
        script.may_come_again = keys.is_given  # a generated key is retried only after `OutcomeUnknown`
        changed, named = (await self._versions.send(address, script)).rows[0]
        return str(named) if changed else None

    async def _retry(
        self, attempt: Callable[[], Awaitable[T]], keys: _Keys, tries: int, patience: Duration
    ) -> T:
        """Attempt until the row does not change between reading and writing it."""
        async for turn in AsyncRetrying(
            retry=retry_if_exception_type(Contended),
            stop=stop_after_attempt(tries) | stop_after_delay(seconds_of("patience", patience)),
            wait=self._backoff_s,
            sleep=self._sleep,
            reraise=True,
        ):
            with turn:
                keys.attempt = turn.retry_state.attempt_number
                return await attempt()
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _backoff_s(self, state: RetryCallState) -> float:
        """Return a random pause whose bound doubles with each attempt."""
        longest = _FIRST_PAUSE_S * (1 << min(state.attempt_number, 16))
        return self._chance() * min(longest, _MAX_PAUSE_S)


def _is_version(row: Columns | None, other: Columns | None) -> bool:
    if row is None or other is None:
        return row is other
    return bool(row[WRITTEN_AT] == other[WRITTEN_AT])


def _contended_error(address: RowAddress) -> Contended:
    return Contended(
        f"row {address.row_key} of {address.table.name} not written: others changed it during each attempt",
        hint="try again later, or let fewer agents write the same row",
    )
