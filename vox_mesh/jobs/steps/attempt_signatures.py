"""Signatures of attempts: who has started an attempt signs what it leaves for the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import orjson

from vox_mesh.errors import TooLarge, UnreadableText
from vox_mesh.jobs.queries import json
from vox_mesh.jobs.transitions import SQL
from vox_mesh.model.base.keys import SigningKey, is_signed, join_signature, merkle_tree, split_signature
from vox_mesh.model.jobs.records import START
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.verification import key_at
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.store.store import Store

_FIELDS: Final = len(LogEntry._fields)
_SHARED: Final = b"vox-mesh shared signature of attempts 1\n"
_MAX_SHARED: Final = 8
"""How many texts share a signature: with more of them, each would have a longer path."""


class AttemptSignatures:
    """Signs for the attempts of this node, and verifies that the node that started an attempt has signed."""

    def __init__(self, store: Store, trusted_keys: TrustedKeys, key: Callable[[], SigningKey]) -> None:
        self._store = store
        self._trusted_keys = trusted_keys
        self._key = key

    def sign(self, text: bytes) -> str:
        """Return the signature of this node. The text names the job and the op that started its attempt."""
        return self._key().sign(text)

    def sign_together(self, texts: Sequence[bytes]) -> list[str]:
        """Return signatures of this node: several texts share one, which costs most of the time."""
        signatures: list[str] = []
        for start in range(0, len(texts), _MAX_SHARED):
            some = texts[start : start + _MAX_SHARED]
            if len(some) == 1:
                signatures.append(self.sign(some[0]))
                continue
            root, paths = merkle_tree(some)
            shared = self.sign(_shared_text(root))
            signatures += [join_signature(shared, path) for path in paths]
        return signatures

    async def is_authentic(self, job_id: str, start_op: str, text: bytes, signature: str) -> bool:
        """Return whether the node that started an attempt at a job by this op has signed the text."""
        start = await self._entry(start_op)
        if start is None or not _starts(start, job_id) or not await self._trusted_keys.is_authentic(start):
            return False
        key = key_at(start.seq, await self._trusted_keys.of_chain(start.node_id))
        own, root = split_signature(signature, text)
        return key is not None and is_signed(text if root is None else _shared_text(root), own, key)

    async def _entry(self, op_id: str) -> LogEntry | None:
        try:
            rows = await self._store.read(
                SQL["ends"], (*self._store.mesh_id, "[]", json([op_id])), fresh=True
            )
        except (TooLarge, UnreadableText):  # only a hostile entry is so
            return None
        entries = (LogEntry._make(row[:_FIELDS]) for row in rows)
        return next((entry for entry in entries if entry.op_id == op_id), None)


def _starts(entry: LogEntry, job_id: str) -> bool:
    """Return whether an entry starts an attempt at a job.

    Its verdict does not matter: a worker signs only after its start was accepted.
    """
    if entry.kind != START:
        return False
    try:
        return any(item["job_id"] == job_id for item in orjson.loads(entry.payload)["jobs"])
    except (ValueError, TypeError, KeyError):
        return False


def _shared_text(root: str) -> bytes:
    """Return what is signed for texts that share a signature."""
    return _SHARED + root.encode()
