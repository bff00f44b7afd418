"""Rollback: detect that the database went back to an earlier state, and fence what was handed out since.

A restored snapshot, or a server that lost its last commits, knows nothing of the locks, claims and log
entries acknowledged since. So before anything is granted again, one transaction raises every counter above
all values that can have been handed out, and begins a new epoch. One node does so; all others are rejected by
their raised incarnations, find the new epoch, and rejoin.
"""

from __future__ import annotations

import logging
from typing import Any, Final, Protocol, TypeVar

from vox_mesh.errors import ConstraintFailed, KeyRefused, Overloaded, Refused
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.json_text import COUNTER_LIMIT
from vox_mesh.model.nodes.store_memory import (
    ROLLED_BACK,
    Epoch,
    StoreMemory,
    StoreState,
    is_other_database,
    rollback_evidence,
)
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.identity import Identity, planted_counters
from vox_mesh.oplog.witness import StoreWitness
from vox_mesh.store.rows import whole_number
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Script, Statement, WriterId, new_key
from vox_mesh.store.write.interceptor import DirectDatabase

_log = logging.getLogger(__name__)

_SQL: Final = named("rollback")
_KEY_GUARDS: Final = [named("nodes")[name] for name in ("refuse_unless_key", "refuse_if_unadmitted")]
_RAISE_STATEMENTS: Final = ("renumber_patterns", "number_newest_pattern", "raise_claims")
_MAX_ATTEMPTS: Final = 16

EndT = TypeVar("EndT", bound=tuple[int, str])


class Chain(Protocol[EndT]):
    """The chain in which a rollback is recorded: that of the node that found it."""

    @property
    def identity(self) -> Identity:
        """Return the identity that writes."""

    async def read_end(self, database: DirectDatabase) -> EndT:
        """Read where the chain ends."""

    def append_statements(self, end: EndT, op_id: str, op: Op) -> list[Statement]:
        """Return the statements that append an op."""


class Rollback:
    """Compare the database with this node's memory of it."""

    def __init__(self, writer_id: WriterId, witness: StoreWitness, clock: MeshClock) -> None:
        self._mesh = writer_id[:2]
        self._witness = witness
        self._clock = clock

    async def is_behind(self, database: DirectDatabase, node_id: str, joined: object) -> bool:
        """Return whether the database was rolled back since this process first wrote, or since it joined."""
        memory = self._witness.memory
        state = await self._read_state(database, node_id, memory)
        is_fenced = joined is not None and state.epoch.op_id != memory.epoch.op_id
        return is_fenced or rollback_evidence(memory, state) is not None

    async def fence_if_behind(
        self, database: DirectDatabase, chain: Chain[EndT], *, is_running: bool
    ) -> bool:
        """Fence a rolled-back database, unless another node has. Return whether it was rolled back.

        `is_running`: this process has worked with it. If not, it may be another database.
        """
        memory, node_id = self._witness.memory, chain.identity.node_id
        if not memory.incarnation:
            return False  # this node remembers nothing
        for _ in range(_MAX_ATTEMPTS):
            state = await self._read_state(database, node_id, memory)
            if not is_running and is_other_database(memory, state):
                _log.warning("database replaced by another one since the last start: node_id=%s", node_id)
                await self._witness.set_aside()
                return False
            if state.epoch.follows(memory.epoch):
                _log.error(
                    "database rolled back, fenced already: node_id=%s epoch=%d", node_id, state.epoch.number
                )
                return True
            evidence = rollback_evidence(memory, state)
            if evidence is None:
                return False
            if await self._fence(database, chain, memory, state, evidence):
                return True
        raise Overloaded(
            f"rollback not fenced: the database changed during each of {_MAX_ATTEMPTS} attempts",
            hint="run `vox-mesh doctor`",
        )

    async def _fence(
        self,
        database: DirectDatabase,
        chain: Chain[EndT],
        memory: StoreMemory,
        state: StoreState,
        evidence: str,
    ) -> bool:
        """Begin the next epoch in one transaction. Return `False` if something has changed meanwhile."""
        identity, op_id = chain.identity, new_key()
        end = await chain.read_end(database)
        payload = _rollback_payload(memory, state, evidence, identity.chain, end[0])
        text = canonical(payload)
        key = (*self._mesh, identity.node_id, identity.key.public)
        script = Script(
            *(Statement(guard, key, refusal=KeyRefused.code) for guard in _KEY_GUARDS),
            *self._fence_statements(identity.node_id, memory, state, op_id, text),
            *chain.append_statements(end, op_id, Op(ROLLED_BACK, text, signed=True)),
            key=op_id,
        )
        try:
            await database.apply(script)
        except Refused as refused:
            return refused.reason == KeyRefused.code  # it can't join either: joining raises the error
        except ConstraintFailed:
            return False
        _log.error(
            "database rolled back: node_id=%s epoch=%d evidence=%r op_id=%s",
            identity.node_id,
            payload["epoch"],
            evidence,
            op_id,
        )
        return True

    def _fence_statements(
        self, node_id: str, memory: StoreMemory, state: StoreState, op_id: str, detail: str
    ) -> list[Statement]:
        mesh, epoch, number = self._mesh, state.epoch, _next_epoch(memory, state)
        statements = [
            Statement(_SQL["refuse_unless_epoch"], (*mesh, epoch.op_id), refusal="epoch_changed"),
            Statement(_SQL["raise_fences"], (*mesh, memory.fence_token)),
            Statement(_SQL["raise_incarnations"], (*mesh, number)),
            *(Statement(_SQL[name], mesh) for name in _RAISE_STATEMENTS),
        ]
        if not epoch.origin:  # rolled back to before there were epochs
            values = (*mesh, 0, memory.epoch.origin, node_id, "{}")
            statements.append(Statement(_SQL["begin_epoch"], values))
        values = (*mesh, number, op_id, node_id, detail)
        return [
            *statements,
            Statement(_SQL["begin_epoch"], values),
            Statement(_SQL["forget_epochs"], mesh),
        ]

    async def _read_state(self, database: DirectDatabase, node_id: str, memory: StoreMemory) -> StoreState:
        """Read what the database knows of the node now."""
        started = self._clock.started()
        row = (await database.ask(Statement(_SQL["state"], (*self._mesh, node_id, memory.entry_id))))[0]
        self._clock.heard(row["now_ms"], started)
        for counter in (row["incarnation"], row["beats"]):
            if counter is not None and not (type(counter) is int and 0 <= counter < COUNTER_LIMIT):
                raise planted_counters(node_id)
        epoch = Epoch(whole_number(row["epoch"], "the epoch"), row["epoch_op"], row["origin"])
        return StoreState(row["incarnation"], row["beats"], row["last_id"], row["op_at_entry"], epoch)


def _next_epoch(memory: StoreMemory, state: StoreState) -> int:
    return max(memory.epoch.number, state.epoch.number) + 1


def _rollback_payload(
    memory: StoreMemory, state: StoreState, evidence: str, chain: str, end_seq: int
) -> dict[str, Any]:
    """Return the payload of the op that records the rollback: what was lost, as far as this node knows."""
    chains = {}
    if memory.seq > end_seq:
        chains[chain] = {"from_seq": end_seq + 1, "to_seq": memory.seq, "hash": memory.hash}
    return {
        "epoch": _next_epoch(memory, state),
        "evidence": evidence,
        "log": {"last_id": state.last_id, "known_id": memory.last_id},
        "chains": chains,
        "fence_token": memory.fence_token,
        "incarnation": memory.incarnation,
    }
