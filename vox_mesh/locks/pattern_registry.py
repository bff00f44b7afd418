"""Patterns among the lock keys: which are in use, and which keys each of them overlaps.

SQL can't decide whether two patterns overlap. So a request compares its keys with the patterns in use and
records the overlaps. It states the newest pattern it was compared with, and is refused if there is a newer
one by then. A new pattern is announced first, so that all later requests are compared with it, and is then
compared with the keys already in use. So the later one of each pair does the comparison, and keys that come
and go never force a request to start over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import orjson

from vox_mesh.model.locks.pattern_index import PatternIndex
from vox_mesh.model.locks.patterns import FILE, is_pattern
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Answer, Script, Statement
from vox_mesh.store.store import Store

_SQL: Final = named("locks")
_RESET_INTERVAL_S: Final = 60.0
_NO_PATTERN: Final = 2**62

PATTERNS_CHANGED: Final = "patterns_changed"
"""The refusal of a request that was not compared with all patterns."""


class PatternRegistry:
    """The patterns that this process knows."""

    def __init__(self, store: Store, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._mesh = store.mesh_id
        self._monotonic = monotonic
        self._reset()

    def _reset(self) -> None:
        self._index = PatternIndex()
        self._newest_pattern = 0
        self._compared: set[str] = set()
        self._since = self._monotonic()

    def compared_up_to(self, key: str) -> int | None:
        """Return the newest pattern that the key was compared with, or `None` if one overlaps it."""
        if not key.startswith(FILE):
            return _NO_PATTERN
        return None if is_pattern(key) or self._index.matching(key) else self._newest_pattern

    def preface(self, keys: Sequence[str]) -> list[Statement]:
        """Return the statements that begin a request for these keys: they check and record the overlaps."""
        files = [key for key in keys if key.startswith(FILE)]
        if not files:
            return []
        patterns = [key for key in files if is_pattern(key)]
        guard = Statement(
            _SQL["refuse_unless_patterns_known"],
            (*self._mesh, self._newest_pattern, orjson.dumps(patterns).decode()),
            refusal=PATTERNS_CHANGED,
        )
        pairs = [[key, other] for key in files for other in self._index.overlapping(key) if other != key]
        return [guard, self._record_overlaps(pairs)] if pairs else [guard]

    def is_known(self, keys: Sequence[str]) -> bool:
        """Return whether the patterns among the keys can be requested right away."""
        return all(key in self._compared for key in keys if is_pattern(key))

    async def learn(self, keys: Sequence[str]) -> None:
        """Read all patterns in use, and bring the patterns among the keys into use."""
        if self._monotonic() - self._since > _RESET_INTERVAL_S:
            self._reset()  # many are out of use by now
        for key in keys:
            if is_pattern(key):
                await self._announce(key)
        index = self._index
        newest = (await self._store.read(_SQL["newest_pattern"], self._mesh, fresh=True)).value or 0
        rows = await self._store.read(_SQL["patterns_after"], (*self._mesh, self._newest_pattern), fresh=True)
        if self._index is not index:
            return  # reset meanwhile: the patterns before these rows are not known any more
        for row in rows:
            self._index.add(row["lock_key"])
            newest = max(newest, row["number"])
        self._newest_pattern = newest

    async def _announce(self, key: str) -> None:
        outcome = await self._store.write(
            Script(
                Statement(_SQL["raise_generation"], self._mesh),
                Statement(_SQL["register_pattern"], (*self._mesh, key)),
                Statement(_SQL["raise_newest_pattern"], self._mesh),
                answer=Answer(_SQL["pattern"], (*self._mesh, key), ("number", "is_compared")),
                repeatable=True,
            )
        )
        row = outcome.rows[0]
        if not row["is_compared"]:
            await self._compare(key, row["number"])
        self._compared.add(key)

    async def _compare(self, key: str, number: int) -> None:
        """Compare a pattern with the keys that were in use before it was announced."""
        rows = await self._store.read(_SQL["file_keys_in_use"], self._mesh, fresh=True)
        others = PatternIndex(row["lock_key"] for row in rows)
        pairs = [[key, other] for other in others.overlapping(key) if other != key]
        compared = Statement(_SQL["mark_pattern_compared"], (*self._mesh, key, number))
        await self._store.write(
            Script(*([self._record_overlaps(pairs)] if pairs else []), compared, repeatable=True)
        )

    def _record_overlaps(self, pairs: Sequence[Sequence[str]]) -> Statement:
        return Statement(_SQL["record_overlaps"], (*self._mesh, orjson.dumps(pairs).decode()))
