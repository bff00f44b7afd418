"""The chain of a log: entries that each hold the hash of the previous one, and seals over their verdicts."""

from __future__ import annotations

import hashlib
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.hlc import Hlc

NO_HASH: Final = "0" * 64
"""The previous hash of the first entry of a chain."""

SEAL: Final = "Seal"
ANCHOR: Final = "Anchor"
COMMANDS: Final = "/cli"
"""The suffix of a node's id that names the chain in which its commands write."""

_VERSION: Final = 1
_VERSION_WITH_AGENT: Final = 2
_BATCH_SIZE: Final = 256
_SIGNATURE_PREFIX: Final = b"vox-mesh op\n"


Verdict = tuple[int, int, int, str | None, str | None, str | None]
"""What a seal covers: an entry's id, number, `accepted`, reason, result and signature."""


def node_of(chain: str) -> str:
    """Return the node of a chain: the commands of a node write in a chain of their own."""
    return chain.removesuffix(COMMANDS)


class LogEntry(NamedTuple):
    """One entry as the log holds it. `payload` and `causal_deps` (op ids) are canonical JSON.

    An entry of version 2 names the agent that acted, and the grant by which it may; one of version 1 neither.
    """

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
    agent: str | None = None
    grant: str | None = None

    @property
    def author(self) -> str:
        """Return the node that wrote it."""
        return node_of(self.node_id)

    @property
    def actor(self) -> str:
        """Return the agent that acted; if none is named, the node that wrote it."""
        return self.agent or self.author

    @property
    def time_ms(self) -> int:
        """Return when it was written, by the clock of its node. Raises `BadValue` if it has no valid time."""
        return Hlc.parse(self.hlc).wall_ms

    @property
    def true_hash(self) -> str:
        """Return the hash of its contents."""
        _, node, seq, op_id, kind, hlc, deps, payload, repository, prev, *_, agent, grant = self
        return hash_of(node, seq, op_id, kind, hlc, deps, payload, repository, prev, agent, grant)

    @property
    def verdict(self) -> Verdict:
        """Return what a seal covers of it."""
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
    agent: str | None = None,
    grant: str | None = None,
) -> str:
    """Return the hash of an entry, given the canonical texts of its dependencies and payload."""
    # This is the canonical form: the keys are sorted, and the fast encoder writes text and small numbers
    # as the standard requires.
    contents: dict[str, Any] = {
        "agent": agent,
        "deps": orjson.Fragment(deps),
        "grant": grant,
        "hlc": hlc,
        "kind": kind,
        "node": node,
        "op_id": op_id,
        "payload": orjson.Fragment(payload),
        "prev": prev,
        "repository": repository,
        "seq": seq,
        "v": _VERSION_WITH_AGENT,
    }
    if agent is None and grant is None:
        del contents["agent"], contents["grant"]
        contents["v"] = _VERSION
    return hashlib.sha3_256(orjson.dumps(contents)).hexdigest()


def signed_text(entry_hash: str, scope_id: str = "") -> bytes:
    """Return the text that the signature of an entry signs: a prefix, the scope and the hash."""
    return b"%b%b\n%b" % (_SIGNATURE_PREFIX, scope_id.encode(), entry_hash.encode())


class Sealing:
    """Fold the verdicts since the last seal, including that seal's own, into one digest.

    The hashed text is the verdicts as JSON arrays, each followed by a comma.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha3_256()
        self._pending: list[Verdict] = []
        self._first: int | None = None
        self.is_due = False

    def add(self, kind: str, verdict: Verdict) -> None:
        """Fold in the verdict of the next entry; a seal starts over with itself."""
        if kind == SEAL:
            self._digest = hashlib.sha3_256()
            self._pending = []
            self._first = None
            self.is_due = False
        else:
            self.is_due = True  # a seal that covers only the previous seal is useless
        if self._first is None:
            self._first = verdict[1]
        self._pending.append(verdict)
        if len(self._pending) == _BATCH_SIZE:
            self._fold()

    def _fold(self) -> None:
        if self._pending:
            self._digest.update(orjson.dumps(self._pending)[1:-1] + b",")
            self._pending = []

    def payload(self, seq: int) -> str:
        """Return the payload of a seal that is to be the next entry, with this number."""
        return canonical(self.claim(seq))

    def claim(self, seq: int) -> dict[str, Any]:
        """Return what a seal with this number states: its entries, and the digest of their verdicts."""
        self._fold()
        first = seq if self._first is None else self._first
        return {"from": first, "to": seq - 1, "verdicts": self._digest.hexdigest()}
