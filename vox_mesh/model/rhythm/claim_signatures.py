"""Signatures of status claims: a node signs the hashes of all claims that it writes at once."""

from __future__ import annotations

import hashlib
from typing import Final

import orjson

_SIGNED_KIND: Final = "vox-mesh.status-claims"
_HASH_BYTES: Final = 16
HASH_LENGTH: Final = 2 * _HASH_BYTES
"""The length of the hash of a claim as text."""


def claim_hash(
    agent_id: str,
    task_id: str,
    epoch_ms: int,
    beat_index: int,
    state: str,
    wait_for: str,
    beats_left: int | None,
    progress: float | None,
    notes: str,
    hlc: str,
    since_ms: int | None,
    phase: str | None,
    score: str | None,
) -> str:
    """Return the hash of a claim, from its columns as they are stored."""
    done = None if progress is None else f"{progress:.9g}"  # databases differ in the last digits
    claimed = (agent_id, task_id, epoch_ms, beat_index, state, wait_for, beats_left, done, notes, hlc)
    text = orjson.dumps((*claimed, since_ms, phase, score))
    return hashlib.sha3_256(text).digest()[:_HASH_BYTES].hex()


def signed_claims(mesh: tuple[str, str], node_id: str, batch: int, hashes: str) -> bytes:
    """Return the text that a node signs: a kind, the mesh, the node, the batch, and the hashes in it."""
    return orjson.dumps([_SIGNED_KIND, *mesh, node_id, batch, hashes])


def split_hashes(hashes: str) -> frozenset[str]:
    """Return the hashes of a batch."""
    return frozenset(hashes[at : at + HASH_LENGTH] for at in range(0, len(hashes), HASH_LENGTH))
