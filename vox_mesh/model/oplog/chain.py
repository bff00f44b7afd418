"""The chain of a log: entries that each hold the hash of the one before, and seals over their verdicts."""

from __future__ import annotations

import hashlib
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.model.base.canonical import canonical

NO_HASH: Final = "0" * 64
"""What the first entry of a chain holds in place of a hash before it."""

SEAL: Final = "Seal"
ANCHOR: Final = "Anchor"

_VERSION: Final = 1
_AT_ONCE: Final = 256
_SIGNED: Final = b"vox-mesh op\n"


Verdict = tuple[int, int, int, str | None, str | None, str | None]
"""What a seal vouches for: an entry's id, number, `accepted`, reason, result and signature."""


class LogEntry(NamedTuple):
    """One entry as the log holds it. `payload`, and `causal_deps` with op ids, are canonical JSON."""

    id: int
    node_id: str
    seq: int
    op_id: str
    kind: str
    hlc: str
    causal_deps: str
    payload: str
    repository_id: str
    prev: str
    hash: str
    signature: str | None
    accepted: int
    reason: str | None
    result: str | None

    @property
    def true_hash(self) -> str:
        """The hash that its contents have."""
        _, node, seq, op_id, kind, hlc, deps, payload, repository, prev, *_ = self
        return hash_of(node, seq, op_id, kind, hlc, deps, payload, repository, prev)

    @property
    def verdict(self) -> Verdict:
        """What a seal vouches for."""
        return self.id, self.seq, self.accepted, self.reason, self.result, self.signature


def hash_of(
    node: str,
    seq: int,
    op_id: str,
    kind: str,
    hlc: str,
    deps: str,
    payload: str,
    repository: str,
    prev: str,
) -> str:
    """The hash of an entry whose dependencies and payload are given as their canonical texts."""
    # Together this is the canonical form of the whole: the keys are in order, and text and small numbers
    # are written by the fast encoder as the standard wants them.
    text = orjson.dumps(
        {
            "deps": orjson.Fragment(deps),
            "hlc": hlc,
            "kind": kind,
            "node": node,
            "op_id": op_id,
            "payload": orjson.Fragment(payload),
            "prev": prev,
            "repository": repository,
            "seq": seq,
            "v": _VERSION,
        }
    )
    return hashlib.sha3_256(text).hexdigest()


def signed_text(entry_hash: str, scope_id: str = "") -> bytes:
    """What a signature of an entry signs: that it is one of an op, of which mesh, and its hash."""
    return b"%b%b\n%b" % (_SIGNED, scope_id.encode(), entry_hash.encode())


class Sealing:
    """Folds the verdicts since the last seal, that seal's own included, into one digest.

    What is hashed are the verdicts as JSON arrays, each followed by a comma.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha3_256()
        self._pending: list[Verdict] = []
        self._first: int | None = None
        self.is_due = False

    def add(self, kind: str, verdict: Verdict) -> None:
        """Fold in the verdict of the next entry; a seal begins anew with itself."""
        if kind == SEAL:
            self._digest = hashlib.sha3_256()
            self._pending = []
            self._first = None
            self.is_due = False
        else:
            self.is_due = True  # a seal of nothing but the seal before it would say nothing
        if self._first is None:
            self._first = verdict[1]
        self._pending.append(verdict)
        if len(self._pending) == _AT_ONCE:
            self._fold()

    def _fold(self) -> None:
        if self._pending:
            self._digest.update(orjson.dumps(self._pending)[1:-1] + b",")
            self._pending = []

    def payload(self, seq: int) -> str:
        """The payload of a seal that is to be the next entry, with this number."""
        return canonical(self.claim(seq))

    def claim(self, seq: int) -> dict[str, Any]:
        """What a seal with this number says: which entries it covers, and the digest of their verdicts."""
        self._fold()
        first = seq if self._first is None else self._first
        return {"from": first, "to": seq - 1, "verdicts": self._digest.hexdigest()}
