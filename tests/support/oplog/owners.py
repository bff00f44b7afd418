"""Owners who follow each other, in a log in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

import orjson

from tests.support.oplog.chains import Log, Said, key_named
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.recovery_key import SECRET_BYTES, RecoveryKey
from vox_mesh.model.oplog.succession import Succession, Successions, Transfer
from vox_mesh.model.oplog.verification import INITIALISE, TRANSFER

FIRST: Final = "node-a"
SCOPE: Final = ""


def recovery_named(name: str) -> RecoveryKey:
    """A recovery key that is always the same for a name."""
    return RecoveryKey(hashlib.sha256(name.encode()).digest()[:SECRET_BYTES])


class OwnedLog(Log):
    """A log with owners; `node-a` has initialised the mesh, with a recovery key."""

    def __init__(self, recovery: str | None = "first") -> None:
        super().__init__(FIRST)
        key = key_named(FIRST).public
        payload = {"key": key, "node": FIRST}
        if recovery is not None:
            payload["recovery"] = recovery_named(recovery).signing_key(key).public
        (self.initial,) = self.write(FIRST, Said(INITIALISE, payload, is_signed=True))

    def transfer(
        self,
        to: str,
        before: LogEntry,
        proof: SigningKey,
        *,
        recovery: str = "next",
        acts: Sequence[LogEntry] = (),
        scope_id: str = SCOPE,
        accepted: int = 1,
    ) -> LogEntry:
        """Write a step that follows another one, with the signature of this key."""
        key = key_named(to).public
        since = {chain: len(self.chain(chain)) + 1 for chain in (to, f"{to}/cli")}
        transfer = Transfer(
            *(before.hash, to, key, recovery_named(recovery).signing_key(key).public, since),
            [act.hash for act in acts],
        )
        payload = orjson.loads(transfer.payload(proof.sign(transfer.signed_text(scope_id))))
        said = Said(TRANSFER, payload, is_signed=True, accepted=accepted, reason=None if accepted else "late")
        return self.write(f"{to}/cli", said)[0]

    def recover(self, to: str, before: LogEntry, recovery: str = "first", owner: str = FIRST) -> LogEntry:
        """Write a step with the signature of a recovery key of this owner."""
        return self.transfer(to, before, recovery_named(recovery).signing_key(key_named(owner).public))


def heard(entries: Iterable[LogEntry]) -> Successions:
    """All steps among these entries, heard by their times."""
    found = Successions(SCOPE)
    ordered = sorted(entries, key=lambda entry: entry.hlc)
    for entry in sorted(ordered, key=lambda entry: entry.id):
        if entry.kind == INITIALISE:
            found.hear_first(entry)
    for entry in ordered:
        if entry.kind == TRANSFER:
            found.hear(entry)
    return found


def resolved(entries: Iterable[LogEntry], pinned_key: str | None = None) -> Succession:
    """The succession in force."""
    found = heard(entries).resolve(pinned_key)
    assert found is not None
    return found
