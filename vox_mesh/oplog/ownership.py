"""Ownership: find the owner of the mesh in the log. The table `mesh_owner` is only a cache of it."""

from __future__ import annotations

import logging
from typing import Final

from vox_mesh.errors import BadSettings
from vox_mesh.model.oplog.authorship import Owner, initial_owner, states_signed_crons
from vox_mesh.oplog.pages import Pages
from vox_mesh.store.schema.statements import named
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

_SQL: Final = named("roles")
_MAX_CANDIDATES: Final = 1_000


class Ownership:
    """Find the first op that initialised the mesh and is signed by the node that it names.

    Once found it is kept, whatever is written to the database afterwards. With a pinned key, only an op of
    that key counts: without one, a writer of the database could plant an earlier op.
    """

    def __init__(self, store: Store, pinned_key: str | None) -> None:
        self._store = store
        self._pages = Pages(store)
        self.pinned_key = pinned_key
        self._found: Owner | None = None
        self._signs_crons = False

    async def owner(self) -> Owner | None:
        """Return the owner, or `None` until a node has initialised the mesh."""
        if self._found is None:
            self._found = await self._find()
            if self._found is not None and (recorded := await self.recorded()) != self._found:
                _log.error(
                    "recorded owner of the mesh ignored, no signed op backs it: recorded=%s owner=%s",
                    None if recorded is None else recorded.public_key,
                    self._found.public_key,
                )
        return self._found

    async def recorded(self) -> Owner | None:
        """Return the owner that the table `mesh_owner` names, which proves nothing."""
        rows = await self._store.read(_SQL["owner"], self._store.mesh_id, fresh=True)
        return Owner._make(rows[0]) if rows else None

    async def signs_crons(self) -> bool:
        """Return whether the mesh has had signed crons from its first op on."""
        return await self.owner() is not None and self._signs_crons

    async def key(self) -> str | None:
        """Return the owner's key: the pinned one, or that of the owner found in the log."""
        if self.pinned_key is not None:
            return self.pinned_key
        owner = await self.owner()
        return None if owner is None else owner.public_key

    async def refuse_if_foreign(self) -> None:
        """Raise `BadSettings` if another than the pinned owner initialised the mesh, as its log has it."""
        if self.pinned_key is None or await self.owner() is not None:
            return
        if await self.recorded() is not None or await self._pages.read("initialised", 0, limit=1, fresh=True):
            raise BadSettings(
                f"no op signed with {self.pinned_key} initialises the mesh, but one of another key does",
                hint="check VOX_MESH_OWNER_KEY; if it is right, the log was rewritten",
            )

    def pin(self, key: str) -> None:
        """Believe only an owner with this key."""
        self.pinned_key, self._found = key, None

    def forget(self) -> None:
        """Look again the next time: the database was rolled back, and may have lost the op."""
        self._found = None

    async def _find(self) -> Owner | None:
        after_id = 0
        for _ in range(_MAX_CANDIDATES):
            page = await self._pages.read("initialised", after_id, limit=1, fresh=True)
            if not page:
                return None
            owner = initial_owner(page[0], self._store.writer_id.scope_id)
            if owner is not None and self.pinned_key in (None, owner.public_key):
                self._signs_crons = states_signed_crons(page[0])
                return owner
            after_id = page[0].id
        return None
