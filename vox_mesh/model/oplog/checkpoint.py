"""Checkpoints: how far a log was verified, so that the next verification goes on from there.

Each chain is continued from its last verified seal, which covers all verdicts before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.model.base.keys import SigningKey, is_signed
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.verification import RecordedHead

_PREFIX: Final = b"vox-mesh verified\n"


class ChainCheckpoint(NamedTuple):
    """A verified seal of a chain, and the last entry up to it that was anchored."""

    seal: LogEntry
    anchored_to: int


@dataclass(frozen=True)
class LogCheckpoint:
    """A log, as far as it was verified, and what decides whether that still holds."""

    mesh: tuple[str, str]
    end: tuple[int, str | None]
    """The last entry of the log, and its op."""

    epoch: tuple[Any, ...]
    """That of the database: another one means a rollback."""

    key_mark: str | None
    """The mark of the ops that decide which keys count."""

    chains: Mapping[str, ChainCheckpoint] = field(default_factory=dict)
    heads: Sequence[RecordedHead] = ()
    """What was recorded of entries after these seals."""

    def encode(self, key: SigningKey) -> bytes:
        """Return it as text, with the signature of a node: no other node believes it."""
        record = {
            "mesh": self.mesh,
            "end": [*self.end],
            "epoch": self.epoch,
            "key_mark": self.key_mark,
            "chains": [[[*each.seal], each.anchored_to] for each in self.chains.values()],
            "heads": [[*each] for each in self.heads],
        }
        text = orjson.dumps(record)
        return orjson.dumps({"checkpoint": text.decode(), "signature": key.sign(_PREFIX + text)})

    @classmethod
    def decode(cls, content: bytes, public_key: str) -> LogCheckpoint | None:
        """Return the checkpoint in a text that the node with this key has signed; `None` if there is none."""
        try:
            signed = orjson.loads(content)
            text = signed["checkpoint"].encode()
            if not is_signed(_PREFIX + text, signed["signature"], public_key):
                return None
            read = orjson.loads(text)
            chains = [ChainCheckpoint(LogEntry(*seal), anchored) for seal, anchored in read["chains"]]
            return cls(
                (read["mesh"][0], read["mesh"][1]),
                (read["end"][0], read["end"][1]),
                tuple(read["epoch"]),
                read["key_mark"],
                {each.seal.node_id: each for each in chains},
                [RecordedHead(*head) for head in read["heads"]],
            )
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            return None
