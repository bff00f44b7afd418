"""Trusted keys: the keys of a chain that its own entries or the owner vouch for.

A key counts if it made the first signature of its chain, or if the owner accepted it by a signed op. In a
strict mesh, the owner must also have admitted the node with it. Rows of `node_keys` only say which keys to
try, and heartbeats say nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import orjson

from vox_mesh.model.base.recent import Recent
from vox_mesh.model.oplog.admissions import NodeAdmissions
from vox_mesh.model.oplog.authorship import is_authentic, opening_key
from vox_mesh.model.oplog.chain import COMMANDS, LogEntry, node_of
from vox_mesh.model.oplog.key_changes import ChainEnd, KeyChange, NodeKeys
from vox_mesh.model.oplog.verification import REKEY, TRANSFER, ChainWitness, Key
from vox_mesh.oplog.archive.deletion_ops import DeletionOps, LastDeletion
from vox_mesh.oplog.closed_chains import ClosedChains
from vox_mesh.oplog.ownership import Ownership
from vox_mesh.oplog.pages import Pages
from vox_mesh.oplog.sealed_verdicts import SealedVerdicts
from vox_mesh.store.schema.statements import named
from vox_mesh.store.store import Store

_SQL: Final = named("oplog")
_MAX_KNOWN: Final = 4_096
_PAGE: Final = 64
_UNSETTLED: Final = ""
"""No mark: a seal may yet show that an op was refused."""


class _Beginnings(NamedTuple):
    """How the chains of a node and of its commands begin, and the keys that are recorded for them."""

    entries: dict[str, list[LogEntry]]
    recorded: dict[str, list[str]]
    mark: str | None
    """Of the ops by which keys were accepted."""


class TrustedKeys:
    """Find the keys of chains. The key that opened a chain is looked up once, and then never replaced."""

    def __init__(self, store: Store, ownership: Ownership) -> None:
        self._store = store
        self._ownership = ownership
        self._pages = Pages(store)
        self._deletions = DeletionOps(store, ownership)
        self._verdicts = SealedVerdicts(store, self._deletions)
        self._opening = Recent[str, str](_MAX_KNOWN)
        self._provisional = Recent[str, str](_MAX_KNOWN)  # of commands whose node has not opened its chain
        self._accepted: dict[str, list[Key]] = {}
        self._changes: dict[str, list[KeyChange]] = {}
        self._admissions = NodeAdmissions()
        self._closed_chains = ClosedChains(store, self._deletions)
        self._mark: str | None = None

    @property
    def mesh_id(self) -> tuple[str, str]:
        """Return the scope and the repository of the mesh."""
        return self._store.mesh_id

    def forget(self) -> None:
        """Look again the next time: the database was rolled back, and may have lost chains."""
        self._opening, self._provisional = Recent(_MAX_KNOWN), Recent(_MAX_KNOWN)
        self._accepted, self._changes, self._mark = {}, {}, None
        self._admissions = NodeAdmissions()
        self._closed_chains.learn({}, {})

    async def of_node(self, node_id: str, *, fresh: bool = False) -> NodeKeys:
        """Return all keys with which a node, or a command under its identity, may have signed.

        It takes one query, unless the owner has accepted keys since the last one.
        """
        begun = await self._look_up(node_id, fresh)
        chains = (node_id, node_id + COMMANDS)
        found = {key.public_key for chain in chains for key in self._own_keys(chain)}
        if not found and not begun.entries:
            # An earlier version recorded a node's key without opening its chain: there is nothing else.
            found = {key for chain in chains for key in begun.recorded.get(chain, ())}
        changes = self._changes.get(node_id, ())
        if not self._admissions.counts(node_id, {*found, *(change.public_key for change in changes)}):
            return NodeKeys()
        return NodeKeys(frozenset(found).difference(change.public_key for change in changes), changes)

    async def admissions(self) -> NodeAdmissions:
        """Return which nodes the owner has admitted, and whether only these count."""
        await self._learn_accepted(await self.read_mark())
        return self._admissions

    async def is_admitted(self, chain: str) -> bool:
        """Return whether the owner has admitted the node of a chain with a key of that chain."""
        node_id = node_of(chain)
        await self._look_up(node_id, fresh=True)
        return self._admissions.has_admitted(node_id, {key.public_key for key in self._own_keys(chain)})

    async def read_mark(self, *, timeout_s: float | None = None) -> str | None:
        """Return the mark of the ops that decide which keys count, as our copy of the database has it."""
        mark: str | None = (
            await self._store.read(_SQL["rekeyed"], self._store.mesh_id, timeout=timeout_s)
        ).value
        return mark

    async def rekeyed_nodes(self) -> list[str]:
        """Return the nodes whose keys the owner has replaced."""
        await self._learn_accepted(await self.read_mark())
        return sorted(self._changes)

    def is_settled(self, node_id: str) -> bool:
        """Return whether the node was seen to have opened its chain: until then, others may open it first."""
        return node_id in self._opening

    async def of_chain(self, chain: str) -> list[Key]:
        """Return the keys of a chain, in the order in which they came into force."""
        if chain in self._opening:
            await self._learn_accepted(await self.read_mark())
        else:
            await self._look_up(node_of(chain), fresh=False)
        return self._keys(chain)

    async def in_force(self, node_id: str) -> tuple[dict[str, list[Key]], str | None]:
        """Return the keys of a node's chain and of that of its commands, the newest last, with their mark.

        A chain of commands without any has those of its node.
        """
        begun = await self._look_up(node_id, fresh=True)
        own = self._keys(node_id)
        return {node_id: own, node_id + COMMANDS: self._keys(node_id + COMMANDS) or own}, begun.mark

    def known(self, chain: str, mark: str | None) -> list[Key] | None:
        """Return the keys of a chain without a query, if they are known.

        `mark` is that of the ops by which keys were accepted (`rekeyed`), as it was read just now.
        """
        return self._keys(chain) if chain in self._opening and mark == self._mark else None

    async def is_authentic(self, entry: LogEntry) -> bool:
        """Return whether the author signed the entry, or one that follows it in the chain."""
        is_signed = entry.signature is not None and await self._is_signed(entry, limit=1)
        is_signed = is_signed or await self._is_signed(entry, limit=_PAGE)
        return is_signed and await self.is_original(entry)

    async def _is_signed(self, entry: LogEntry, limit: int) -> bool:
        """Return whether the author signed the entry or a later one, read in pages up to a signed one."""
        run, mark = await self._pages.from_entry(entry.node_id, entry.seq, limit=limit)
        keys = self.known(entry.node_id, mark)
        if keys is None:
            keys = await self.of_chain(entry.node_id)
        return is_authentic(entry, run, keys, self._store.writer_id.scope_id)

    async def is_original(self, entry: LogEntry) -> bool:
        """Return whether a signed entry was not put in place of another since its key was replaced."""
        return await self._closed_chains.has(entry)

    async def closed_chains(self) -> Mapping[str, Sequence[ChainEnd]]:
        """Return by chain the last entries that it had when its keys were replaced, in order."""
        await self._learn_accepted(await self.read_mark())
        return self._closed_chains.ends

    async def is_sealed(self, entry: LogEntry) -> bool:
        """Return whether the author signed the entry, and a seal that has its verdict."""
        return await self._verdicts.is_sealed(entry, await self.of_chain(entry.node_id))

    async def has_changed_verdict(self, entry: LogEntry) -> bool:
        """Return whether the verdict of an entry, or one near it, was changed since its author sealed it."""
        return await self._verdicts.is_changed(entry, await self.of_chain(entry.node_id))

    async def is_of_owner(self, entry: LogEntry) -> bool:
        """Return whether the owner of the mesh signed this very entry, whatever became of it."""
        return await self.is_any_of_owner([entry])

    async def is_any_of_owner(self, entries: Iterable[LogEntry]) -> bool:
        """Return whether the owner of the mesh signed one of these very entries."""
        witness = await self._ownership.witness()
        return any(witness.is_of_owner(entry) for entry in entries)

    async def may_own(self, chain: str, key: str) -> bool:
        """Return whether what this key signs next in this chain is an act of the owner."""
        return await self._ownership.may_act(chain, key)

    async def last_deletion(self) -> LastDeletion:
        """Return how far entries of the log may be deleted."""
        return await self._deletions.last()

    def _keys(self, chain: str) -> list[Key]:
        return self._admissions.limit(chain, self._own_keys(chain))

    def _own_keys(self, chain: str) -> list[Key]:
        """Return the keys of a chain, also if the owner of a strict mesh has admitted none of them."""
        opening = self._opening.get(chain) or self._provisional.get(chain)
        first = [] if opening is None else [Key(chain, 1, opening)]
        # An accepted key comes after it, even if it is for the first entry, and is then the one in force.
        return [*first, *self._accepted.get(chain, ())]

    # --- looking up ------------------------------------------------------------------------------

    async def _look_up(self, node_id: str, fresh: bool) -> _Beginnings:
        """Learn the keys that opened the chain of a node and that of its commands, and the accepted ones."""
        begun = await self._read_beginnings(node_id, fresh)
        await self._learn_accepted(begun.mark)
        self._provisional.pop(node_id + COMMANDS, None)
        for chain in (node_id, node_id + COMMANDS):
            first = begun.entries.get(chain)
            if first is None or chain in self._opening:
                continue
            own = [key.public_key for key in (*self._own_keys(node_id), *self._changes.get(node_id, ()))]
            candidates = [*begun.recorded.get(chain, ()), *own]
            opening = opening_key(first, candidates, self._store.writer_id.scope_id)
            # A command has its node's key: no other one opens its chain once the node has opened its own.
            is_foreign = chain != node_id and bool(own) and opening not in own
            if opening is not None and not is_foreign and await self._may_open(chain, opening):
                is_final = chain == node_id or bool(own)
                (self._opening if is_final else self._provisional)[chain] = opening
        return begun

    async def _may_open(self, chain: str, key: str) -> bool:
        """Return whether a key may open a chain: the first owner had its key when it opened its own.

        With a pinned key, no chain counts before its owner has initialised the mesh: the log may be another.
        """
        owner = await self._ownership.initial()
        if owner is None:
            return self._ownership.pinned_key is None
        return node_of(chain) != owner.node_id or key == owner.public_key

    async def _read_beginnings(self, node_id: str, fresh: bool) -> _Beginnings:
        values = (*self._store.mesh_id, node_id, node_id + COMMANDS)
        rows = await self._store.read(_SQL["beginnings"], values, fresh=fresh)
        entries: dict[str, list[LogEntry]] = {}
        for row in rows:
            if row["id"] is not None:
                entry = LogEntry._make(tuple(row)[: len(LogEntry._fields)])
                entries.setdefault(entry.node_id, []).append(entry)
        recorded: dict[str, list[str]] = {}
        for chain, key in orjson.loads(rows[0]["keys"]):
            recorded.setdefault(chain, []).append(key)
        return _Beginnings(entries, recorded, rows[0]["mark"])

    async def _learn_accepted(self, mark: str | None) -> None:
        """Read the keys that the owner accepted, if there is another such op since they were read."""
        if mark == self._mark:
            return
        entries = [entry async for entry in self._pages.about_keys() if entry.kind != TRANSFER]
        witness = await self._ownership.witness()  # after them: it knows the owners who signed them
        owner = await self._ownership.owner()
        admissions = NodeAdmissions([] if owner is None else [owner.node_id])
        is_settled = True
        for entry in entries:
            counted = entry
            if entry.accepted != 1 and not await self._is_refused(entry, witness):
                # The old key or mode must not count again because an op is marked as refused.
                counted, is_settled = entry._replace(accepted=1), False
            if entry.kind == REKEY:
                witness.hear(counted)
            elif witness.is_of_owner(entry):
                admissions.hear(counted)
        accepted: dict[str, list[Key]] = {}
        for key in sorted(witness.accepted_keys):
            accepted.setdefault(key.node_id, []).append(key)
        self._accepted, self._mark = accepted, mark if is_settled else _UNSETTLED
        self._changes = {node_id: witness.changes_of(node_id) for node_id in witness.rekeyed_nodes}
        for node_id, changes in self._changes.items():
            admissions.accept(node_id, (change.public_key for change in changes))
        self._admissions = admissions
        self._closed_chains.learn(self._changes, admissions.ends)

    async def _is_refused(self, entry: LogEntry, witness: ChainWitness) -> bool:
        """Return whether an op that is marked as refused is not the owner's, or a seal says that it was."""
        key = witness.owners.signer(entry)
        return key is None or await self._verdicts.is_sealed(entry, [Key(entry.node_id, 1, key)])
