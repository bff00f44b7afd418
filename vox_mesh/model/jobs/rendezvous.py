"""Rendezvous hashing: nodes that see the same membership agree on whose turn a job is.

The score of a node for a job is the hash of the job's id, its random seed and the node's name; the lowest
score wins. A node with more capacity wins more often: the hash, as a number u between 0 and 1, becomes
`-ln(1 - u) / weight`, which for equal weights is in the order of the hashes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from math import log1p
from typing import Final

GRACE_MS: Final = 250
"""The time each rank waits for the previous one."""

RANKS: Final = 4
"""The number of ranks that wait for each other; after them come groups of as many nodes as came before."""

_MAX_GRACES: Final = 8
MAX_PATIENCE_MS: Final = _MAX_GRACES * GRACE_MS
"""The longest time that a node waits before it claims a pending job."""

_SCALE: Final = 2.0**-64


class Ranking:
    """The rank of one node among all candidates for a job."""

    def __init__(self, node_id: str, weights: Mapping[str, int]) -> None:
        """Create the ranking of a node; `weights` must have every candidate, including this one."""
        self._own = node_id.encode()
        self._weight = weights[node_id]
        self._others = [(each.encode(), weight) for each, weight in weights.items() if each != node_id]
        self._is_even = all(weight == self._weight for _, weight in self._others)

    def place(self, job_id: str, seed: str) -> int:
        """Return the rank of this node, from 0."""
        return sum(self._compare(job_id, seed))

    def is_first(self, job_id: str, seed: str) -> bool:
        """Return whether this node has rank 0; cheaper than `place`."""
        if not self._is_even or not self._others:
            return not any(self._compare(job_id, seed))
        base = _base(job_id, seed)
        own = sha256(base + self._own).digest()
        # A plain loop: with a deep backlog, this is asked of several jobs for each that is claimed.
        for each, _ in self._others:  # noqa: SIM110
            if sha256(base + each).digest() < own:
                return False
        return True

    def _compare(self, job_id: str, seed: str) -> Iterator[bool]:
        """Yield for each other node whether it ranks before this one."""
        if not self._others:
            return iter(())
        base = _base(job_id, seed)
        if self._is_even:
            own = sha256(base + self._own).digest()
            return (sha256(base + each).digest() < own for each, _ in self._others)
        mine = _score(base, self._own, self._weight)
        return (_score(base, each, weight) < mine for each, weight in self._others)


def score(job_id: str, seed: str, node_id: str, weight: int = 1) -> float:
    """Return the score of a node for a job; the lowest wins."""
    return _score(_base(job_id, seed), node_id.encode(), weight)


def patience_ms(place: int, grace_ms: int = GRACE_MS) -> int:
    """Return the time in ms that a node of this rank waits before it claims a pending job.

    Of a large mesh, not all nodes try at once: 1 s after the first one the next four, then eight, and so on.
    """
    graces = place if place < RANKS else RANKS - 1 + (place // RANKS).bit_length()
    return min(graces, _MAX_GRACES) * grace_ms


def _base(job_id: str, seed: str) -> bytes:
    return job_id.encode() + bytes.fromhex(seed)


def _score(base: bytes, node: bytes, weight: int) -> float:
    # The first 64 bits distinguish any two nodes; the rounding keeps the number below 1.
    first = int.from_bytes(sha256(base + node).digest()[:8], "big")
    return -log1p(-(first >> 11 << 11 | 1 << 10) * _SCALE) / weight
