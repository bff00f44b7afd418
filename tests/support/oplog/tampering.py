"""A small mesh whose log has all there is in one, and hands that change its rows behind the mesh's back."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import orjson
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from vox_mesh import Answer, Mesh, Op, OpKind, Rows, Script, Settings, Statement, Store, guard
from vox_mesh.errors import Refused
from vox_mesh.mesh import ARTIFACTS
from vox_mesh.model.base.backends import Backend
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.oplog.chain import COMMANDS, NO_HASH, SEAL, LogEntry, Sealing, signed_text
from vox_mesh.node import MeshNode
from vox_mesh.nodes.clock import Dependencies, MeshClock
from vox_mesh.nodes.identity import Identity
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.store import Value, new_key
from vox_mesh.store.script import WriterId

NOTE: Final = OpKind("test.note")
"""An op that does nothing."""

# What verifying says of some of the faults.
NO_HASH_OF_IT: Final = "its contents do not have its hash"
NOT_SIGNED_BY_AUTHOR: Final = "its signature is not one of its author's key"
VERDICTS: Final = "the verdicts since the last seal .* were changed"
NO_ENTRY: Final = "it holds something that no entry can hold"

# The entries of the node's chain, by their numbers. Those from the first note to the last went in one
# request, so that only the last of them is signed.
(
    INITIALISED,
    FIRST_NOTE,
    REFUSED,
    ANSWERED,
    LAST_NOTE,
    DESIGNATED,
    DEFERRED,
    FIRST_SEAL,
    LATE_NOTE,
    SECOND_SEAL,
    OWN_ANCHOR,
) = range(1, 12)

# The entries of the second chain, which begins when the first one has been sealed twice.
ANCHOR, COMMANDS_SEAL = 1, 2

_COLUMNS: Final = ", ".join(LogEntry._fields)
_OF_ENTRY: Final = "WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 AND seq = ?4"
_TABLES: Final = ("agent_oplog", "node_keys", "mesh_owner")
_TIMEOUT_S: Final = 10.0


def stranger() -> SigningKey:
    """An unknown key."""
    return SigningKey(Ed25519PrivateKey.generate())


class Intruder:
    """A client that can write to the database, past all guards."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._mesh = store.mesh_id

    async def run(self, *statements: tuple[str, tuple[Value, ...]]) -> None:
        """Run statements in one go; `?1` and `?2` are the mesh, then their own values."""
        changes = (Statement(sql, (*self._mesh, *values)) for sql, values in statements)
        await self._store.write(Script(*changes))

    async def entries(self, chain: str) -> list[LogEntry]:
        """What the log holds of a chain, in order."""
        sql = f"SELECT {_COLUMNS} FROM agent_oplog"
        rows = await self._store.read(
            f"{sql} WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3 ORDER BY seq",
            (*self._mesh, chain),
            fresh=True,
        )
        return [LogEntry._make(row) for row in rows]

    async def set(self, chain: str, seq: int, /, **columns: Value) -> None:
        """Change columns of one entry."""
        names = ", ".join(f"{name} = ?{place}" for place, name in enumerate(columns, start=5))
        await self.run((f"UPDATE agent_oplog SET {names} {_OF_ENTRY}", (chain, seq, *columns.values())))

    async def delete(self, chain: str, first: int, last: int) -> None:
        """Delete the entries of a chain from one number to another."""
        sql = "DELETE FROM agent_oplog WHERE scope_id = ?1 AND repository_id = ?2 AND node_id = ?3"
        await self.run((f"{sql} AND seq BETWEEN ?4 AND ?5", (chain, first, last)))

    async def insert(self, entry: LogEntry) -> None:
        """Add an entry unchanged; the database gives it its id."""
        names = [name for name in LogEntry._fields if name not in ("id", "repository_id")]
        places = ", ".join(f"?{place}" for place in range(3, 3 + len(names)))
        sql = (
            f"INSERT INTO agent_oplog (scope_id, repository_id, {', '.join(names)}) VALUES (?1, ?2, {places})"
        )
        await self.run((sql, tuple(getattr(entry, name) for name in names)))

    async def replace(self, chain: str, entries: list[LogEntry]) -> None:
        """Put other contents in the places of a chain's entries."""
        sql = f"UPDATE agent_oplog SET payload = ?5, prev = ?6, hash = ?7, signature = ?8 {_OF_ENTRY}"
        await self.run(*((sql, (chain, e.seq, e.payload, e.prev, e.hash, e.signature)) for e in entries))

    async def swap(self, chain: str, one: int, other: int, *columns: str) -> None:
        """Let two entries change places in some of their columns."""
        entries = {entry.seq: entry for entry in await self.entries(chain)}
        names = ", ".join(f"{name} = ?{place}" for place, name in enumerate(columns, start=5))
        away: dict[str, Value] = {"id": -1, "seq": -1, "op_id": "away", "hlc": "away"}

        def values(seq: int) -> tuple[Value, ...]:
            return tuple(getattr(entries[seq], name) for name in columns)

        update = f"UPDATE agent_oplog SET {names} {_OF_ENTRY}"
        nowhere = tuple(away.get(name, "away") for name in columns)
        place = -1 if "seq" in columns else one
        await self.run(
            (update, (chain, one, *nowhere)),
            (update, (chain, other, *values(one))),
            (update, (chain, place, *values(other))),
        )

    async def set_key(self, chain: str, public_key: str, from_seq: int = 1) -> None:
        """Have a chain be known with a key from an entry on."""
        sql = "INSERT OR REPLACE INTO node_keys (scope_id, repository_id, node_id, from_seq, public_key)"
        await self.run((f"{sql} VALUES (?1, ?2, ?3, ?4, ?5)", (chain, from_seq, public_key)))

    async def set_owner(self, public_key: str) -> None:
        """Have the mesh be owned by a key."""
        sql = "UPDATE mesh_owner SET public_key = ?3 WHERE scope_id = ?1 AND repository_id = ?2"
        await self.run((sql, (public_key,)))

    async def delay(self, op_id: str) -> None:
        """Have an op of the log wait, as if it had to, for what it depends on."""
        sql = "INSERT OR REPLACE INTO deferred_ops (scope_id, repository_id, op_id, causal_deps)"
        await self.run((f"{sql} VALUES (?1, ?2, ?3, '[]')", (op_id,)))

    async def next_entry(self, chain: str, kind: str, said: Any, /, **columns: Any) -> LogEntry:
        """An entry that fits the end of a chain in all but its signature."""
        entries = await self.entries(chain)
        last = entries[-1] if entries else None
        time = Hlc(0, 0, chain) if last is None else Hlc.parse(last.hlc)
        entry = LogEntry(
            id=0,
            node_id=chain,
            seq=1 if last is None else last.seq + 1,
            op_id=new_key(),
            kind=kind,
            hlc=str(time._replace(wall_ms=time.wall_ms + 1)),
            causal_deps="[]",
            payload=canonical(said),
            repository_id=self._mesh[1],
            prev=NO_HASH if last is None else last.hash,
            hash="",
            signature=None,
            accepted=1,
            reason=None,
            result=None,
        )
        return hashed(entry._replace(**columns))

    def signed(self, entry: LogEntry, key: SigningKey) -> LogEntry:
        """The entry with its hash and a key's signature."""
        entry = hashed(entry)
        return entry._replace(signature=key.sign(signed_text(entry.hash, self._mesh[0])))

    def rechained(self, entries: list[LogEntry], first: int, payload: str, key: SigningKey) -> list[LogEntry]:
        """The chain from an entry on, with another payload there: linked, sealed and signed with a key."""
        again: list[LogEntry] = []
        sealing = Sealing()
        prev = NO_HASH
        for entry in entries:
            if entry.seq >= first:
                said = payload if entry.seq == first else entry.payload
                said = sealing.payload(entry.seq) if entry.kind == SEAL else said
                entry = self.signed(entry._replace(payload=said, prev=prev), key)
                again.append(entry)
            sealing.add(entry.kind, entry.verdict)
            prev = entry.hash
        return again


def hashed(entry: LogEntry) -> LogEntry:
    """The entry with the hash that its contents have."""
    return entry._replace(hash=entry.true_hash)


class TamperedLog(Intruder):
    """A node that owns its mesh and has appended all sorts of ops; its commands have anchored them."""

    def __init__(self, node: MeshNode) -> None:
        super().__init__(node.store)
        self.node = node
        self.chain = node.identity.chain
        self.commands = node.identity.node_id + COMMANDS
        self.key = node.identity.key
        self._kept: dict[str, Rows] = {}

    async def keep(self) -> None:
        """Remember all rows as they are now."""
        for table in _TABLES:
            self._kept[table] = await self._store.read(
                f"SELECT * FROM {table} WHERE scope_id = ?1 AND repository_id = ?2", self._mesh
            )

    async def restore(self) -> None:
        """Undo whatever was done to the rows since they were kept."""
        statements: list[tuple[str, tuple[Value, ...]]] = []
        for table, rows in self._kept.items():
            values = ", ".join(f"value ->> {place}" for place in range(len(rows.columns)))
            insert = f"INSERT OR REPLACE INTO {table} ({', '.join(rows.columns)}) SELECT {values}"
            kept = orjson.dumps([tuple(row) for row in rows]).decode()
            statements.append((f"DELETE FROM {table} WHERE scope_id = ?1 AND repository_id = ?2", ()))
            statements.append((f"{insert} FROM json_each(?3)", (kept,)))
        await self.run(*statements)


def note(payload: Any, *statements: Statement, answer: Answer | None = None) -> Script:
    """A script that is a note in the log."""
    return Script(*statements, answer=answer, op=Op(NOTE.name, canonical(payload)))


@asynccontextmanager
async def open_scene(settings: Settings) -> AsyncIterator[TamperedLog]:
    """Such a mesh, with nothing changed yet."""
    # Its clock stands still, so that no minute passes after which it would seal and anchor by itself.
    async with Mesh.open(settings, Dependencies(monotonic=lambda: 0.0)) as node:
        node.oplog.register(NOTE)
        verdicts = await node.store.write_all(
            [
                note({"text": "first", "n": 1}),
                note({"text": "refused"}, guard("1 = 2", refusal="not_today")),
                note({"text": "answered"}, answer=Answer("SELECT 7", columns=("seven",))),
                note({"text": "last"}),
            ]
        )
        assert [isinstance(verdict, Refused) for verdict in verdicts] == [False, True, False, False]
        await node.roles.designate_coordinator(node.identity.node_id)
        await node.oplog.append(NOTE.name, {"text": "deferred"}, deps=[new_key()])
        await node.store.write(node.oplog.seal_script())
        await node.oplog.append(NOTE.name, {"text": "late"})
        await node.store.write(node.oplog.seal_script())
        async with commands_beside(node, settings) as commands:
            await commands.oplog.anchor()
        await node.oplog.anchor()
        scene = TamperedLog(node)
        await scene.run(("DELETE FROM deferred_ops WHERE scope_id = ?1 AND repository_id = ?2", ()))
        await node.pending_ops.refresh()  # no one applies or drops anything meanwhile
        await scene.keep()
        yield scene


@asynccontextmanager
async def commands_beside(node: MeshNode, settings: Settings) -> AsyncIterator[Mesh]:
    """A command next to a node. In memory it lives in the node's own process, since no other has the data."""
    if settings.backend is not Backend.MEMORY:
        async with Mesh.open_command(settings) as mesh:
            yield mesh
        return
    identity = Identity(node.identity.node_id, node.identity.key, node.identity.node_id + COMMANDS)
    writer_id = WriterId(settings.scope_id, settings.repository_id, "command")
    dependencies = Dependencies()
    clock = MeshClock(dependencies)
    author = OpLogWriter(lambda: identity, writer_id, clock)
    store = Store(settings.backend, node.store._engine, writer_id, timeout=_TIMEOUT_S, interceptor=author)
    mesh = Mesh(store, author, clock, dependencies, None, settings.home_dir / ARTIFACTS)
    yield mesh
    await store.write(mesh.oplog.seal_script())


class Found(NamedTuple):
    """What verifying must say: of which chain, at which entry, what. Other chains may suffer with it."""

    chain: str
    seq: int | None
    problem: str
    others: frozenset[str] = frozenset()


async def assert_found(scene: TamperedLog, found: Found) -> None:
    """Verifying finds just this, and names the entry."""
    broken = {report.node_id: report for report in await scene.node.oplog.verify() if report.problem}
    assert broken.keys() == {found.chain, *found.others}, broken
    report = broken[found.chain]
    assert report.problem is not None
    assert re.search(found.problem, report.problem), report
    assert report.seq == found.seq, report
    named = [entry.op_id for entry in await scene.entries(found.chain) if entry.seq == found.seq]
    assert named in ([], [report.op_id]) or report.op_id is None
