"""Trusted keys: the keys of a chain that its own entries or the owner vouch for.

A key counts if it made the first signature of its chain, or if the owner accepted it by a signed op. Rows of
`node_keys` only say which keys to try, and heartbeats say nothing.
"""

from __future__ import annotations

from typing import Final

from vox_mesh.model.base.recent import Recent
from vox_mesh.model.oplog.authorship import is_authentic, opening_key
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.verification import REKEY, ChainWitness, Key
from vox_mesh.nodes.identity import COMMANDS
from vox_mesh.oplog.ownership import Ownership
from vox_mesh.oplog.pages import Pages
from vox_mesh.store.schema.statements import named
from vox_mesh.store.store import Store

_SQL: Final = named("oplog")
_MAX_KNOWN: Final = 4_096
_PAGE: Final = 64


class TrustedKeys:
    """Find the keys of chains. The key that opened a chain is looked up once, and then never replaced."""

    def __init__(self, store: Store, ownership: Ownership) -> None:
        self._store = store
        self._ownership = ownership
        self._pages = Pages(store)
        self._opening = Recent[str, str](_MAX_KNOWN)
        self._accepted: dict[str, list[Key]] = {}
        self._rekeyed: str | None = None

    def forget(self) -> None:
        """Look again the next time: the database was rolled back, and may have lost chains."""
        self._opening = Recent(_MAX_KNOWN)
        self._accepted, self._rekeyed = {}, None

    async def of_node(self, node_id: str, *, fresh: bool = False) -> frozenset[str]:
        """Return all keys with which a node, or a command under its identity, may have signed."""
        chains = (node_id, node_id + COMMANDS)
        found = {key.public_key for chain in chains for key in await self.of_chain(chain, fresh=fresh)}
        if not found and not [page for chain in chains if (page := await self._first_of(chain, fresh))]:
            # An earlier version recorded a node's key without opening its chain: there is nothing else.
            found = {key.public_key for chain in chains for key in await self._recorded(chain, fresh)}
        return frozenset(found)

    async def of_chain(self, chain: str, *, fresh: bool = False) -> list[Key]:
        """Return the keys of a chain, in the order in which they came into force."""
        opening = await self._opening_key(chain, fresh)
        keys = [] if opening is None else [Key(chain, 1, opening)]
        later = (await self._accepted_by_owner(fresh)).get(chain, ())
        return keys + [key for key in later if key.from_seq > 1 or opening is None]

    async def is_authentic(self, entry: LogEntry) -> bool:
        """Return whether the author signed the entry, or one that follows it in the chain."""
        run = await self._pages.from_entry(entry.node_id, entry.seq, limit=_PAGE)
        keys = await self.of_chain(entry.node_id)
        return is_authentic(entry, run, keys, self._store.writer_id.scope_id)

    async def _recorded(self, chain: str, fresh: bool) -> list[Key]:
        values = (*self._store.mesh_id, chain)
        return [Key._make(row) for row in await self._store.read(_SQL["keys_of_chain"], values, fresh=fresh)]

    async def _first_of(self, chain: str, fresh: bool) -> list[LogEntry]:
        return await self._pages.from_entry(chain, 1, limit=_PAGE, fresh=fresh)

    async def _opening_key(self, chain: str, fresh: bool) -> str | None:
        known = self._opening.get(chain)
        if known is None:
            first = await self._first_of(chain, fresh)
            # A command has its node's key.
            candidates = [key.public_key for key in await self._recorded(chain, fresh)]
            if chain.endswith(COMMANDS):
                of_node = await self.of_chain(chain.removesuffix(COMMANDS), fresh=fresh)
                candidates += [key.public_key for key in of_node]
            known = opening_key(first, candidates, self._store.writer_id.scope_id)
            if known is not None:
                self._opening[chain] = known
        return known

    async def _accepted_by_owner(self, fresh: bool) -> dict[str, list[Key]]:
        """Return the keys that the owner accepted, by chain; read again if there is another such op."""
        mark = (await self._store.read(_SQL["rekeyed"], self._store.mesh_id, fresh=fresh)).value
        if mark != self._rekeyed:
            witness = ChainWitness(await self._ownership.key(), (), self._store.writer_id.scope_id)
            async for entry in self._pages.of_kind(REKEY, fresh=True):
                witness.hear(entry)
            accepted: dict[str, list[Key]] = {}
            for key in sorted(witness.accepted_keys):
                accepted.setdefault(key.node_id, []).append(key)
            self._accepted, self._rekeyed = accepted, mark
        return self._accepted
