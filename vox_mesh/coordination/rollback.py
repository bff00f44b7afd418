"""Rollback: how a node finds out that the database has gone back, and fences what was handed out since.

A snapshot that is put back, or a server that lost its last commits, knows nothing of the locks, claims and
log entries of the time since, though they were acknowledged. So before anything is granted again, one
transaction raises every counter above all that can have been handed out, and begins a new epoch. One node
does so; all others are refused by their raised incarnations, find the new epoch, and join again.
"""

from __future__ import annotations

from typing import Any, Final

from vox_mesh.model.store_memory import Epoch, StoreMemory, StoreState
from vox_mesh.store.journal import Desk
from vox_mesh.store.script import Statement
from vox_mesh.store.statements import named

_SQL: Final = named("rollback")
_RAISING: Final = (
    *("renumber_patterns", "number_newest_pattern"),
    *("raise_incarnations", "raise_claims"),
)

Mesh = tuple[str, str]


async def ask_state(desk: Desk, mesh: Mesh, node_id: str, memory: StoreMemory) -> StoreState:
    """Ask what the database knows of the node now."""
    row = (await desk.ask(Statement(_SQL["state"], (*mesh, node_id, memory.entry_id))))[0]
    epoch = Epoch(row["epoch"], row["epoch_op"], row["origin"])
    seen = (row["now_ms"], row["incarnation"], row["beats"], row["last_id"], row["op_at_entry"])
    return StoreState(*seen, epoch)


def is_other_database(memory: StoreMemory, state: StoreState) -> bool:
    """Whether this is not the database that is remembered: it has another origin, or is new."""
    if state.epoch.origin:
        return state.epoch.origin != memory.epoch.origin
    return state.incarnation is None


def next_epoch(memory: StoreMemory, state: StoreState) -> int:
    """The number of the epoch that a rollback begins: no node that may see it knows a higher one."""
    return max(memory.epoch.number, state.epoch.number) + 1


def lost(memory: StoreMemory, state: StoreState, evidence: str, chain: str, end_seq: int) -> dict[str, Any]:
    """What was lost, as far as this node knows: the payload of the op that records the rollback."""
    chains = {}
    if memory.seq > end_seq:
        chains[chain] = {"from_seq": end_seq + 1, "to_seq": memory.seq, "hash": memory.hash}
    return {
        "epoch": next_epoch(memory, state),
        "evidence": evidence,
        "log": {"last_id": state.last_id, "known_id": memory.last_id},
        "chains": chains,
        "fence_token": memory.fence_token,
        "incarnation": memory.incarnation,
    }


def fencing(
    mesh: Mesh, node_id: str, memory: StoreMemory, state: StoreState, op_id: str, payload: str
) -> list[Statement]:
    """Begin the next epoch: refused unless the one that was seen is still the newest."""
    statements = [
        Statement(_SQL["refuse_unless_epoch"], (*mesh, state.epoch.op_id), refusal="epoch_changed"),
        Statement(_SQL["raise_fences"], (*mesh, memory.fence_token)),
        *(Statement(_SQL[name], mesh) for name in _RAISING),
    ]
    if not state.epoch.origin:  # it is from before there were epochs
        statements.append(_begun(mesh, 0, memory.epoch.origin, node_id, "{}"))
    statements.append(_begun(mesh, next_epoch(memory, state), op_id, node_id, payload))
    return [*statements, Statement(_SQL["forget_epochs"], mesh)]


def chain_guard(mesh: Mesh, chain: str, last_hash: str | None) -> Statement:
    """Refuse unless the chain ends with this entry."""
    values = (*mesh, chain, last_hash)
    return Statement(_SQL["refuse_unless_chain_ends"], values, refusal="chain_moved")


def _begun(mesh: Mesh, number: int, op_id: str, node_id: str, detail: str) -> Statement:
    return Statement(_SQL["begin_epoch"], (*mesh, number, op_id, node_id, detail))
