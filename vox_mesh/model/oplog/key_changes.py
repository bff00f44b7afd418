"""Key changes: the keys of a node that the owner replaced, and what signed with them still counts.

The holder of a replaced key can date what it signs as it likes. So an old key counts only for what the owner
listed in the signed op that replaced it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import parse
from vox_mesh.model.base.keys import is_signed
from vox_mesh.model.oplog.chain import COMMANDS, NO_HASH, LogEntry

MAX_MAIL: Final = 10_000
"""How many messages of a node stay deliverable when its key is replaced."""

_DIGEST_LENGTH: Final = 32


class ChainEnd(NamedTuple):
    """The last entry of a chain."""

    seq: int
    hash: str


NO_ENTRIES: Final = ChainEnd(0, NO_HASH)


class KeyChange(NamedTuple):
    """A new key of a node, as the owner accepted it by a signed op."""

    hlc: str
    op_id: str
    node_id: str
    public_key: str
    since: dict[str, int]
    """The entry of each chain of the node from which on the key is in force."""
    ends: dict[str, str]
    """The hash of the entry before that, of each chain; empty in ops of earlier versions."""
    mail: frozenset[str] | None
    """Digests of the messages that waited then; `None` in ops of earlier versions."""

    @classmethod
    def read(cls, entry: LogEntry) -> KeyChange:
        """Return the change that an op of the owner states.

        A chain of the node that it does not name did not exist then: the new key opens it.
        """
        payload: Any = parse(entry.payload)
        node_id, public_key, mail = payload["node"], payload["key"], payload.get("mail")
        since = {node_id: 1, node_id + COMMANDS: 1, **payload["from"]}
        if not isinstance(public_key, str) or any(type(seq) is not int for seq in since.values()):
            raise BadValue(f"op {entry.op_id} names no key, or no positions")
        listed = None if mail is None else frozenset(mail)
        return cls(entry.hlc, entry.op_id, node_id, public_key, since, dict(payload.get("after", {})), listed)


def change_payload(
    node_id: str, public_key: str, ends: Mapping[str, ChainEnd], mail: Iterable[str]
) -> dict[str, Any]:
    """Return the payload of the op by which the owner accepts a key, from the ends of the node's chains on.

    `mail`: the signatures of the node's messages that can still be delivered.
    """
    return {
        "node": node_id,
        "key": public_key,
        "from": {chain: end.seq + 1 for chain, end in ends.items()},
        "after": {chain: end.hash for chain, end in ends.items()},
        "mail": sorted({digest_of(signature) for signature in mail}),
    }


def digest_of(signature: str) -> str:
    """Return what the owner lists of a message: its signature fits no other text."""
    return hashlib.sha256(signature.encode()).hexdigest()[:_DIGEST_LENGTH]


@dataclass(frozen=True)
class NodeKeys:
    """The keys of a node: the ones that opened its chains, and the ones that replaced them, in order."""

    opening: frozenset[str] = frozenset()
    changes: Sequence[KeyChange] = ()

    @property
    def current(self) -> frozenset[str]:
        """Return the keys that the node may sign with now."""
        return frozenset({self.changes[-1].public_key}) if self.changes else self.opening

    @property
    def known(self) -> frozenset[str]:
        """Return all keys, including replaced ones."""
        return self.opening.union(change.public_key for change in self.changes)

    def signer(self, text: bytes, signature: str) -> str | None:
        """Return the key that signed a text, be it replaced or not; `None` if none of them did."""
        return next((key for key in self.known if is_signed(text, signature, key)), None)

    def covers(self, key: str, hlc: str, signature: str) -> bool:
        """Return whether a message with this time and signature counts, if it was signed with this key.

        With a replaced key, it must have waited for delivery when the owner replaced it. An op of an earlier
        version does not list such messages: there the time decides, which the sender chose.
        """
        for change in self._changes_after(key):
            if change.mail is not None:
                return digest_of(signature) in change.mail
            if hlc > change.hlc:
                return False
        return key in self.known

    def _changes_after(self, key: str) -> Sequence[KeyChange]:
        """Return the changes since the key was accepted last."""
        places = [place for place, change in enumerate(self.changes, 1) if change.public_key == key]
        return self.changes[places[-1] if places else 0 :]
