"""A node's memory of the database's state, by which it detects a rollback."""

from __future__ import annotations

from typing import Final, NamedTuple

import orjson

ROLLED_BACK: Final = "StoreRolledBack"
"""The op that records a rollback of the database."""

TOKENS_RAISED_BY: Final = 2**20
"""How far a rollback raises the fencing tokens: by a second, in the time that they carry."""

INCARNATIONS_RAISED_BY: Final = 2**32
"""How far a rollback raises the incarnations, which do not carry the time."""


_COUNTER_LIMIT: Final = 2**53
"""No valid counter reaches this. A damaged file must not raise the counters of the whole mesh."""


class Epoch(NamedTuple):
    """A period of the database's history without a rollback. Its op is unique, its number may not be."""

    number: int = 0
    op_id: str = ""
    origin: str = ""
    """The id of epoch 0, which identifies the database."""

    def follows(self, known: Epoch) -> bool:
        """Return whether it began after a known one. An earlier one has a lower number, or no op."""
        return self.op_id not in ("", known.op_id) and self.number >= known.number


class StoreMemory(NamedTuple):
    """The newest acknowledged state of the database that a node has seen."""

    epoch: Epoch = Epoch()
    incarnation: int = 0
    beats: int = 0
    last_id: int = 0
    """The highest id of a log entry, of any chain."""

    entry_id: int = 0
    entry_op: str = ""
    seq: int = 0
    hash: str = ""
    """The end of the node's own chain: its id, op, number and hash."""

    fence_token: int = 0
    """The highest fencing token."""

    def encode(self) -> bytes:
        """Return the memory as stored in a file."""
        return orjson.dumps({**self._asdict(), "epoch": self.epoch._asdict()})

    @classmethod
    def decode(cls, text: bytes) -> StoreMemory | None:
        """Return the stored memory; `None` if the text is invalid."""
        try:
            read = orjson.loads(text)
            memory = cls(**{**read, "epoch": Epoch(**read["epoch"])})
        except (ValueError, TypeError, KeyError):
            return None
        expected = cls(Epoch())
        is_sound = all(
            type(found) is type(usual) and (not isinstance(found, int) or 0 <= found < _COUNTER_LIMIT)
            for found, usual in zip((*memory, *memory.epoch), (*expected, *expected.epoch), strict=True)
        )
        return memory if is_sound else None


class StoreState(NamedTuple):
    """What the database knows of a node now."""

    incarnation: int | None
    beats: int
    last_id: int
    op_at_entry: str | None
    """The op of the log entry that has the id of the node's last one."""

    epoch: Epoch


def is_other_database(memory: StoreMemory, state: StoreState) -> bool:
    """Return whether this is not the remembered database: its origin differs, or it is new."""
    if state.epoch.origin:
        return state.epoch.origin != memory.epoch.origin
    return state.incarnation is None


def rollback_evidence(memory: StoreMemory, state: StoreState) -> str | None:
    """Return the evidence that the database was rolled back since it was remembered; `None` if there is none.

    A missing log entry is no evidence if later ids exist: then it was deleted.
    """
    if state.epoch.number < memory.epoch.number:
        return f"epoch {state.epoch.number} is below {memory.epoch.number}"
    if not state.epoch.origin and memory.epoch.origin:
        return "there are no epochs"
    if (state.incarnation or 0) < memory.incarnation:
        return f"incarnation {state.incarnation or 0} is below {memory.incarnation}"
    if state.beats < memory.beats:
        return f"heartbeat {state.beats} is below {memory.beats}"
    if state.last_id < memory.last_id:
        return f"the log ends with id {state.last_id}, below {memory.last_id}"
    if memory.entry_id and state.op_at_entry not in (None, memory.entry_op):
        return f"log id {memory.entry_id} was given to another entry than {memory.entry_op}"
    return None
