"""File removal: a node removes its files of artifacts that were pruned, or that never became an output."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import orjson

from vox_mesh.errors import MeshError, StaleIncarnation, StoreClosed
from vox_mesh.jobs.proof.blob_files import BlobStamp, BlobStore
from vox_mesh.model.documents.documents import is_hash
from vox_mesh.model.nodes.features import ARTIFACTS_KNOWN
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.identity import Identity, machine_id
from vox_mesh.nodes.nodes import Features
from vox_mesh.runtime.home_check import ARTIFACTS
from vox_mesh.runtime.store_memories import has_other_databases
from vox_mesh.settings import Settings
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

REST_S: Final = 3_600.0
"""How long a file must have been unused before it is removed."""

_SQL: Final = named("artifacts")
_PAGE: Final = 500
_MAX_MARKS: Final = 10_000
_SLACK_MS: Final = 60_000
"""By how much the start of an attempt may be later in the database than it was here."""


class _Mark(NamedTuple):
    """A file that is to be removed, as it was when it was seen first."""

    stamp: BlobStamp
    at_ms: int
    monotonic: float


class FileRemoval:
    """Removes files that no artifact in the database names.

    A process publishes a file before the database knows of it. So a file goes only an hour after this process
    has seen it first, if it was not used again since, and if all attempts have ended that were running on
    this machine then: what they stored is in the database now, or lost.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        identity: Identity,
        clock: MeshClock,
        features: Features,
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._settings = settings
        self._blobs = BlobStore(settings.home_dir / ARTIFACTS)
        self._node_id = identity.node_id
        self._clock = clock
        self._features = features
        self._monotonic = monotonic
        self._marks: dict[str, _Mark] = {}

    async def run(self, chance: Callable[[], float]) -> None:
        """Remove files from time to time, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.prune_interval * (0.5 + chance()))
            try:
                await self.run_once()
            except (StaleIncarnation, StoreClosed):
                raise  # retrying is useless
            except MeshError as error:
                _log.warning("files of artifacts not removed: %s", error.line)

    async def run_once(self) -> int:
        """Remove the files that may go, and return their number."""
        if not self._clock.can_author or not await self._features.is_known_to_all(ARTIFACTS_KNOWN):
            return 0
        hashes = await self._unneeded()
        stamps = await asyncio.to_thread(self._stamps, hashes) if hashes else {}
        await self._end_removals([each for each in hashes if each not in stamps])
        self._mark(stamps)
        removed = await self._remove_ripe()
        await self._end_removals(removed)
        if removed:
            _log.info("files of artifacts removed: files=%d", len(removed))
        return len(removed)

    async def _unneeded(self) -> list[str]:
        """Return the hashes of the files that are to be removed, on any node."""
        found: list[str] = []
        after = ""
        while True:
            rows = await self._store.read(_SQL["removals"], (*self._store.mesh_id, after, _PAGE))
            found += [row["hash"] for row in rows if is_hash(row["hash"])]  # others are planted
            if len(rows) < _PAGE:
                return found
            after = rows[-1]["hash"]

    def _stamps(self, hashes: Iterable[str]) -> dict[str, BlobStamp]:
        """Return the stamps of the hashes that are files here. Blocking."""
        found = ((each, self._blobs.stamp(each)) for each in hashes)
        return {each: stamp for each, stamp in found if stamp is not None}

    def _mark(self, stamps: dict[str, BlobStamp]) -> None:
        kept = {each: mark for each, mark in self._marks.items() if stamps.get(each) == mark.stamp}
        at_ms, monotonic = self._clock.now_ms, self._monotonic()
        for each, stamp in stamps.items():
            if len(kept) < _MAX_MARKS:
                kept.setdefault(each, _Mark(stamp, at_ms, monotonic))
        self._marks = kept

    async def _remove_ripe(self) -> list[str]:
        until = self._monotonic() - REST_S
        ripe = [each for each, mark in self._marks.items() if mark.monotonic <= until]
        if not ripe:
            return []
        if self._store.slot_name is not None and has_other_databases(self._settings):
            _log.warning("files of artifacts not removed: the home has nodes of several databases")
            return []
        removed: list[str] = []
        for start in range(0, len(ripe), _PAGE):
            part = await self._removable(ripe[start : start + _PAGE])
            removed += await asyncio.to_thread(self._remove, part)
        for each in removed:
            del self._marks[each]
        return removed

    async def _removable(self, hashes: Sequence[str]) -> list[str]:
        """Return the hashes that nothing needs, by the database itself."""
        mesh = self._store.mesh_id
        # In this order: an attempt that has ended meanwhile has left what it stored.
        first = (await self._store.read(_SQL["first_start"], (*mesh, machine_id()), fresh=True)).value
        rows = await self._store.read(_SQL["still_named"], (*mesh, _json(hashes)), fresh=True)
        named_still = {row["hash"] for row in rows}
        for each in named_still:
            del self._marks[each]
        free = [each for each in hashes if each not in named_still]
        return [each for each in free if first is None or first > self._marks[each].at_ms + _SLACK_MS]

    def _remove(self, hashes: Iterable[str]) -> list[str]:
        """Remove files; return the hashes of the removed ones. Blocking."""
        return [each for each in hashes if self._blobs.remove(each, self._marks[each].stamp)]

    async def _end_removals(self, hashes: Sequence[str]) -> None:
        """Write that this node has none of these files."""
        values = (*self._store.mesh_id, self._node_id)
        for start in range(0, len(hashes), _PAGE):
            part = _json(hashes[start : start + _PAGE])
            own = [row["hash"] for row in await self._store.read(_SQL["own_removals"], (*values, part))]
            if own:
                await self._store.write(Script(Statement(_SQL["end_removals"], (*values, _json(own)))))


def _json(hashes: Sequence[str]) -> str:
    return orjson.dumps(hashes).decode()
