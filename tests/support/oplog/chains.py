"""A log in memory, written by a small author of its own: the rules of the format, said a second time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from proof.op_hash import op_hash
from vox_mesh.model.base.hlc import HybridClock
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.base.ulid import encode
from vox_mesh.model.oplog.chain import ANCHOR, NO_HASH, SEAL, LogEntry, Sealing, signed_text
from vox_mesh.model.oplog.log_check import LogCheck
from vox_mesh.model.oplog.verification import WITNESSES, ChainReport, ChainWitness, Key

REPOSITORY: Final = "default"
_START_MS: Final = 1_800_000_000_000


class Said(NamedTuple):
    """An op to be written, and what became of it."""

    kind: str
    payload: Any
    deps: tuple[str, ...] = ()
    accepted: int = 1
    reason: str | None = None
    result: str | None = None
    is_signed: bool = False


def key_named(name: str) -> SigningKey:
    """A key that is always the same for a name."""
    return SigningKey(Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest()))


def signed_by(key: SigningKey, entry: LogEntry) -> LogEntry:
    """The entry with the hash of its contents and a signature of it."""
    own = op_hash(entry)
    return entry._replace(hash=own, signature=key.sign(signed_text(own)))


class Log:
    """Chains of several authors, committed one after another."""

    def __init__(self, owner: str | None = None) -> None:
        self.owner_key = None if owner is None else key_named(owner).public
        self.keys: list[Key] = []
        self._signing: dict[str, SigningKey] = {}
        self._chains: dict[str, list[LogEntry]] = {}
        self._sealings: dict[str, Sealing] = {}
        self._clocks: dict[str, HybridClock] = {}
        self._count = 0

    @property
    def entries(self) -> list[LogEntry]:
        """All entries, chain by chain and in order."""
        return [entry for name in sorted(self._chains) for entry in self._chains[name]]

    @property
    def names(self) -> list[str]:
        """The chains, in their order."""
        return sorted(self._chains)

    def chain(self, node_id: str) -> list[LogEntry]:
        """The entries of one chain."""
        return self._chains.get(node_id, [])

    def write(self, node_id: str, *said: Said) -> list[LogEntry]:
        """One request: its ops, of which the last is signed; a seal comes first, if there is one."""
        if node_id not in self._chains:
            self._chains[node_id] = []
            self._sealings[node_id] = Sealing()
            self._clocks[node_id] = HybridClock(node_id)
            self._use(node_id, 1, key_named(node_id.partition("/")[0]))  # a command has its node's key
        made = [self._entry(node_id, each, is_last=each is said[-1]) for each in said]
        for entry in made:
            self._sealings[node_id].add(entry.kind, entry.verdict)
        return made

    def seal(self, node_id: str) -> LogEntry:
        """A request with nothing but a seal."""
        return self.write(node_id, self.sealing(node_id))[0]

    def sealing(self, node_id: str) -> Said:
        """A seal over all verdicts that the chain has so far."""
        sealing = self._sealings.get(node_id, Sealing())
        return Said(SEAL, sealing.claim(len(self.chain(node_id)) + 1))

    def anchor(self, node_id: str) -> LogEntry:
        """A request that records where all other chains end."""
        heads = {name: [chain[-1].seq, chain[-1].hash] for name, chain in self._chains.items()}
        heads.pop(node_id, None)
        return self.write(node_id, Said(ANCHOR, {"heads": heads}))[0]

    def rekey(self, node_id: str, key: SigningKey) -> None:
        """Go on with another key."""
        self._use(node_id, len(self._chains[node_id]) + 1, key)

    def _use(self, node_id: str, from_seq: int, key: SigningKey) -> None:
        self._signing[node_id] = key
        self.keys.append(Key(node_id, from_seq, key.public))

    def _entry(self, node_id: str, said: Said, *, is_last: bool) -> LogEntry:
        chain = self._chains[node_id]
        self._count += 1
        entry = LogEntry(
            id=self._count,
            node_id=node_id,
            seq=len(chain) + 1,
            op_id=encode(_START_MS, self._count),
            kind=said.kind,
            hlc=str(self._clocks[node_id].tick(_START_MS + self._count)),
            causal_deps=rfc8785.dumps(list(said.deps)).decode(),
            payload=rfc8785.dumps(said.payload).decode(),
            repository_id=REPOSITORY,
            prev=chain[-1].hash if chain else NO_HASH,
            hash="",
            signature=None,
            accepted=said.accepted,
            reason=said.reason,
            result=said.result,
        )
        entry = signed_by(self._signing[node_id], entry)
        if not (is_last or said.is_signed):
            entry = entry._replace(signature=None)
        chain.append(entry)
        return entry


def rechained(entries: Sequence[LogEntry], key: SigningKey) -> list[LogEntry]:
    """A chain written again so that all fits together: links, numbers, seals, hashes, and signatures."""
    made: list[LogEntry] = []
    sealing = Sealing()
    for seq, entry in enumerate(entries, start=1):
        linked = entry._replace(seq=seq, prev=made[-1].hash if made else NO_HASH)
        if entry.kind == SEAL:
            linked = linked._replace(payload=sealing.payload(seq))
        whole = signed_by(key, linked)
        if entry.signature is None:
            whole = whole._replace(signature=None)
        sealing.add(whole.kind, whole.verdict)
        made.append(whole)
    return made


def verified(
    entries: Iterable[LogEntry], keys: Iterable[Key], owner_key: str | None = None
) -> list[ChainReport]:
    """What verification finds in a log."""
    entries = list(entries)
    witness = ChainWitness(owner_key, keys)
    for entry in entries:
        if entry.kind in WITNESSES:
            witness.hear(entry)
    check = LogCheck(witness)
    for entry in entries:
        check.check(entry)
    return check.finish()


def problems(entries: Iterable[LogEntry], keys: Iterable[Key], owner_key: str | None = None) -> list[str]:
    """What is wrong with a log: nothing, if it was not changed."""
    return [
        f"{each.node_id} {each.seq}: {each.problem}"
        for each in verified(entries, keys, owner_key)
        if each.problem
    ]
