"""Rendezvous: everyone who sees the same nodes works out by itself whose turn a job is.

The score of a node for a job is the hash of the job's id, its random seed and the node's name, and the lowest
wins. A node with more places wins more often: the hash, as a number u between 0 and 1, becomes
`-ln(1 - u) / weight`, which for equal weights is in the order of the hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from math import log1p
from typing import Final

GRACE_MS: Final = 250
"""How long each rank waits for the one before it."""

RANKS: Final = 4
"""After so many times the grace, anyone may."""

_SCALE: Final = 2.0**-64


def score(job_id: str, seed: str, node_id: str, weight: int = 1) -> float:
    """The node's score for the job: the lowest wins."""
    return _score(_base(job_id, seed), node_id, weight)


def rank(job_id: str, seed: str, node_id: str, weights: Mapping[str, int]) -> int:
    """How many of the others come before this node. `weights` holds every candidate, this one included."""
    base = _base(job_id, seed)
    own = _score(base, node_id, weights[node_id])
    return sum(_score(base, each, weight) < own for each, weight in weights.items() if each != node_id)


def patience_ms(place: int, grace_ms: int = GRACE_MS) -> int:
    """How long a node of this rank waits before it claims a job that is still there."""
    return min(place, RANKS) * grace_ms


def _base(job_id: str, seed: str) -> hashlib._Hash:
    return hashlib.sha256(job_id.encode() + bytes.fromhex(seed))


def _score(base: hashlib._Hash, node_id: str, weight: int) -> float:
    whole = base.copy()
    whole.update(node_id.encode())
    # The first 64 bits tell any two nodes apart; their middle keeps the number below 1.
    number = (int.from_bytes(whole.digest()[:8], "big") >> 11 << 11 | 1 << 10) * _SCALE
    return -log1p(-number) / weight
