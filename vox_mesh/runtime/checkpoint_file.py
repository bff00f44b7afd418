"""The checkpoint file: how far a home has verified the log of a mesh."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from vox_mesh.errors import BadSettings
from vox_mesh.model.base.backends import Backend
from vox_mesh.model.oplog.checkpoint import LogCheckpoint
from vox_mesh.nodes.identity import Identity, find_identity
from vox_mesh.runtime.open_store import target_of
from vox_mesh.store.files import replace_private
from vox_mesh.store.slots import slot_folder

if TYPE_CHECKING:
    from vox_mesh.settings import Settings

_log = logging.getLogger(__name__)

_MAX_BYTES: Final = 64 * 2**20


class CheckpointFile:
    """A file in the home, replaced as a whole, and signed with the key of the node whose home it is."""

    def __init__(self, settings: Settings) -> None:
        mesh = hashlib.sha256(f"{settings.scope_id}\n{settings.repository_id}".encode()).hexdigest()[:12]
        self._settings = settings
        self._is_kept = settings.backend is not Backend.MEMORY
        self._path = settings.home_dir / f"verified-{target_of(settings)}-{mesh}.json"

    async def load(self) -> LogCheckpoint | None:
        """Return the checkpoint; `None` if there is none that this node has signed."""
        try:
            identity, content = self._identity(), await asyncio.to_thread(self._read)
        except OSError:
            return None
        return None if identity is None else LogCheckpoint.decode(content, identity.key.public)

    def _identity(self) -> Identity | None:
        """Return the identity of this home; a command that only reads makes none."""
        with suppress(BadSettings):
            return find_identity(slot_folder(self._settings.home_dir, self._settings.node_id))
        return None

    def _read(self) -> bytes:
        with self._path.open("rb") as file:
            return file.read(_MAX_BYTES)

    async def keep(self, checkpoint: LogCheckpoint | None) -> None:
        """Replace the file; without a checkpoint, or without a key to sign it, it is left alone."""
        identity = self._identity() if self._is_kept else None
        if checkpoint is None or identity is None:
            return
        content, draft = checkpoint.encode(identity.key), self._path.with_suffix(f".{os.getpid()}.new")
        try:
            await asyncio.to_thread(replace_private, self._path, content, draft)
        except OSError as error:
            _log.warning("checkpoint not written: path=%s error=%s", self._path, error.strerror)
