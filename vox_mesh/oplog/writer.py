"""The op log writer: appends ops to its chain with each request, and tracks the end of the chain.

The end is known from acknowledged requests. When the outcome of a request is unknown, or another process has
appended to the chain (as commands do), the end is read again before the next request. Every request states
the end it was made for, so that one which arrives late is rejected as a whole.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import orjson

from vox_mesh.errors import (
    ChainBroken,
    KeyRefused,
    NoAnswer,
    NodeInUse,
    NodeNotAdmitted,
    Refused,
    StaleIncarnation,
)
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.keys import is_signed
from vox_mesh.model.nodes.features import BRIEF_PROOFS
from vox_mesh.model.nodes.liveness import DEAD_AFTER_TICKS, STALE_MS
from vox_mesh.model.nodes.store_memory import INCARNATIONS_RAISED_BY, Epoch, StoreMemory
from vox_mesh.model.oplog import chain
from vox_mesh.model.oplog.authorship import OPEN_CHAIN
from vox_mesh.model.oplog.chain import Sealing
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.database_clock import DatabaseClock, Observer
from vox_mesh.nodes.identity import Identity, key_refused, not_admitted
from vox_mesh.oplog.entries import End, EntryBuilder, EntryValues, entries_json
from vox_mesh.oplog.recalled import recalled_verdict
from vox_mesh.oplog.rollback import Rollback
from vox_mesh.oplog.witness import StoreWitness
from vox_mesh.store.acting import current_agent
from vox_mesh.store.rows import Row, Value, whole_number
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Script, Statement, Verdict, WriterId
from vox_mesh.store.write.interceptor import DirectDatabase
from vox_mesh.store.write.script_batch import NO_WRAPPER, BatchWrapper
from vox_mesh.store.write.script_statements import NO_CONDITION

if TYPE_CHECKING:
    from vox_mesh.oplog.planted_keys import Apply

_log = logging.getLogger(__name__)

AGENTS_NAMED: Final = 18
"""The schema version since which entries name the agent that acts."""

READERS: Final = (STALE_MS, DEAD_AFTER_TICKS)
"""When a node counts as a reader of the log."""

_SQL: Final = named("oplog")
_NODES: Final = named("nodes")
_PAGE_ENTRIES: Final = 1_000
_GUARD_REUSE_S: Final = 0.5
_STILL_ON_TIME: Final = _SQL["refuse_if_clock_was_set"]
_IS_CURRENT: Final = f"EXISTS ({_SQL['is_current']})"
_IS_ON_TIME: Final = f"EXISTS ({_SQL['is_on_time']})"


class Joined(NamedTuple):
    """The result of joining: the incarnation, the state this node can rely on, and the epoch."""

    incarnation: int
    beats: int
    last_id: int
    epoch: Epoch
    epoch_began_ms: int


class Registration(Protocol):
    """Register a node's incarnation."""

    async def register(self, database: DirectDatabase) -> Joined:
        """Begin a new incarnation, once."""


class OpLogWriter:
    """Append to one chain: a node's own, or the one its commands share."""

    def __init__(
        self,
        load: Callable[[], Identity],
        writer_id: WriterId,
        clock: MeshClock,
        registration: Registration | None = None,
        witness: StoreWitness | None = None,
        on_rejoin: Callable[[], None] = lambda: None,
        agent: str | None = None,
    ) -> None:
        """`on_rejoin` is called when the node has joined again after a rollback.

        `agent` acts unless an op says otherwise; by default it is the node.
        """
        self._load_identity = load
        self._identity: Identity | None = None
        self._mesh = writer_id[:2]
        self._clock = clock
        self._entry_builder = EntryBuilder(writer_id, clock)
        self._agent = agent
        self.database_clock = DatabaseClock(clock)
        self._registration = registration
        self.witness = StoreWitness() if witness is None else witness
        self._rollback = Rollback(writer_id, self.witness, clock)
        self.incarnation: int | None = None
        self.has_brief_proofs = False  # whether every live node reads them
        self.rollbacks = 0
        """How many rollbacks of the database this process has found."""
        self.joined: Joined | None = None
        """The result of joining; `None` while this node has not joined, or has to join again."""
        self._is_joining = False
        self._on_rejoin = on_rejoin
        self.drop_planted_keys: Callable[[Apply], Awaitable[bool]] | None = None
        """Deletes keys that were planted for this identity; returns whether its own is the one in force."""
        self.is_recovering = False
        """Whether this command makes its node the owner, which needs no admission."""
        self.broken: ChainBroken | None = None
        """Why nothing can be appended to the chain, if that was found."""
        self.found_broken = 0
        """How often the chain was found broken after it had been intact."""
        self._end: End | None = None  # not known
        self._acknowledged: End | None = None  # the chain was not read yet
        self._sealing = Sealing()
        self._bound: list[EntryValues] = []
        self._guard: BatchWrapper | None = None
        self._guard_for: StoreMemory | None = None
        self._guarded_at = 0.0
        self._started = 0.0

    @property
    def identity(self) -> Identity:
        """Return the identity that writes; a command's is loaded at its first write."""
        if self._identity is None:
            self._identity = self._load_identity()
            self._clock.name(self._identity.chain)
        return self._identity

    @property
    def is_seal_due(self) -> bool:
        """Return whether there are verdicts that no seal covers."""
        return self._sealing.is_due

    @property
    def is_chain_open(self) -> bool:
        """Return whether the chain is known to have an entry, by which others know this writer's key."""
        return self._acknowledged is not None and self._acknowledged.seq > 0

    @property
    def acting_agent(self) -> str:
        """Return who acts in the current task: the agent that was named, or that of the writer."""
        return current_agent() or self._agent or self.identity.node_id

    @property
    def names_agents(self) -> bool:
        """Return whether new entries name the agent that acts."""
        return self._entry_builder.default_agent is not None

    def hear_of_readers(self, oldest: int | None) -> None:
        """Take in the oldest version that a live node runs: once all know agents, entries name them."""
        self.has_brief_proofs = oldest is None or oldest >= BRIEF_PROOFS
        if oldest is None or oldest >= AGENTS_NAMED:
            self._entry_builder.default_agent = self._agent or self.identity.node_id

    def open_script(self) -> Script:
        """Return the script of an op that does nothing but open the chain; it may wait in the spool."""
        author = self.identity
        payload = canonical({"key": author.key.public, "node": author.node_id})
        return Script(op=Op(OPEN_CHAIN, payload, signed=True), appendable=True)

    # --- the write interceptor -------------------------------------------------------------------

    def bind(self, scripts: Sequence[Script]) -> BatchWrapper | None:
        """Return the wrapper of a request with these scripts, or `None` if `prepare` must be called first."""
        if self._bound:
            self._end, self._bound = None, []  # its outcome is unknown
        if self._registration is not None and self.joined is None:
            return None
        if len(scripts) == 1:
            ops = scripts if scripts[0].op is not None else ()
        else:
            ops = [script for script in scripts if script.op is not None]
        if not ops:
            return self._guard_wrapper()
        if self._end is None:
            return None
        entries = self._entry_builder.build(self.identity, self._end, ops, self._sealing)
        return self._append_wrapper(self._end, entries)

    async def prepare(self, database: DirectDatabase) -> None:
        """Join, if that is still to be done, and read where the chain ends."""
        was_broken, self.broken = self.broken is not None, None
        try:
            await self._join(database)
            try:
                await self._find_end(database)
            except ChainBroken:
                if not await self._has_rolled_back(database):
                    raise
                await self._join(database)
                await self._find_end(database)
        except ChainBroken as error:
            self.found_broken += not was_broken
            self.broken = error
            raise

    def settled(self, rows: Sequence[Sequence[Any]]) -> None:
        """Record that the request was applied: the next seal covers the verdicts on its ops."""
        if not self._bound:
            return
        found = {row[1]: row for row in rows}
        if len(found) != len(self._bound):
            raise NoAnswer("answer of the database incomplete: verdicts on some ops are missing")
        for entry in self._bound:
            entry_id, _, now_ms, *verdict = found[entry.seq]
            accepted, reason, result = verdict or (1, entry.remark, None)
            self._sealing.add(entry.kind, (entry_id, entry.seq, accepted, reason, result, entry.signature))
        self._clock.heard(now_ms, self._started)
        last = self._bound[-1]
        self._end = self._acknowledged = End(last.seq, last.hash)
        self.witness.record_entry(found[last.seq][0], last.op_id, last.seq, last.hash)
        self._bound = []

    async def recall(self, scripts: Sequence[Script], database: DirectDatabase) -> Mapping[str, Verdict]:
        """Return the verdicts on those of the scripts that are in the log, by their keys."""
        self._end, self._bound = None, []
        ops = {script.key: script for script in scripts if script.op is not None}
        keys = orjson.dumps(list(ops)).decode()
        rows = await database.ask(Statement(_SQL["verdicts_of"], (*self._mesh, keys)))
        verdicts = {
            key: recalled_verdict(ops[key], list(own)) for key, own in groupby(rows, itemgetter("op_id"))
        }
        if len(verdicts) < len(scripts):
            await self._refuse_if_not_ours(database)
        return verdicts

    # --- binding ---------------------------------------------------------------------------------

    def _guard_wrapper(self) -> BatchWrapper:
        """Return the wrapper of a request without ops; it is reused until something new is acknowledged."""
        self._started = now = self._clock.started()
        seen = self.witness.seen
        is_reusable = 0 <= now - self._guarded_at <= _GUARD_REUSE_S and self._clock.step is None
        if self._guard is None or self._guard_for is not seen or not is_reusable:
            self._guard, self._guard_for, self._guarded_at = self._new_guard(), seen, now
        return self._guard

    def _new_guard(self) -> BatchWrapper:
        window, days = self._clock.window_ms, self._clock.window_days
        if self._registration is not None:
            writer = self._writer_values
            guard = Statement(_SQL["refuse_unless_current"], (*self._mesh, *writer, *window))
            condition = Statement(_IS_CURRENT, (*writer, *days))
            return BatchWrapper((guard,), Statement(_STILL_ON_TIME, days), condition=condition)
        if not self._clock.is_set:
            return NO_WRAPPER
        guard = Statement(_SQL["refuse_unless_on_time"], window)
        condition = Statement(_IS_ON_TIME, (*NO_CONDITION, *days))
        return BatchWrapper((guard,), Statement(_STILL_ON_TIME, days), condition=condition)

    @property
    def _writer_values(self) -> Sequence[Value]:
        """Return the values that identify the writer, and the state that must be in the database for it."""
        seen = self.witness.seen
        return (self.identity.chain, self.incarnation, seen.beats, seen.last_id)

    def _append_wrapper(self, end: End, entries: list[EntryValues]) -> BatchWrapper:
        author = self.identity
        last = end.hash if end.seq else None
        self._bound = entries
        self._started = self._clock.started()
        window, days = self._clock.window_ms, self._clock.window_days
        if self._registration is None:
            own = (author.node_id, author.key.public)
            whose = (*self._mesh, author.chain, last, *own)
            preface: tuple[Statement, ...] = (Statement(_SQL["refuse_unless_at"], (*whose, *window)),)
            if not self.is_recovering:
                preface += (Statement(_NODES["refuse_if_unadmitted"], (*self._mesh, *own)),)
        else:
            current = (*self._mesh, *self._writer_values, last)
            preface = (Statement(_SQL["refuse_unless_current_at"], (*current, *window)),)
        if not end.seq:
            preface += (Statement(_SQL["record_key"], (*self._mesh, author.chain, author.key.public)),)
        mesh = (*self._mesh, author.chain)

        def verdicts() -> Statement:
            return Statement(_SQL["append_verdicts"], (*mesh, entries_json(entries)))

        if any(entry.columns for entry in entries):  # only the database knows their answers
            accepted = verdicts()
        elif len(entries) == 1:
            accepted = Statement(_SQL["append_one"], (*mesh, *entries[0][:12]))
        else:
            accepted = Statement(_SQL["append_several"], (*mesh, entries_json(entries)))
        return BatchWrapper(preface, Statement(_STILL_ON_TIME, days), accepted, verdicts)

    # --- joining, and rejoining after a rollback -------------------------------------------------

    async def _join(self, database: DirectDatabase) -> None:
        """Begin an incarnation, unless one has begun: from then on no other process can append."""
        if self._registration is None or self.joined is not None:
            return
        is_rejoin = self.incarnation is not None
        await self.database_clock.first_read(database)
        self.rollbacks += await self._rollback.fence_if_behind(database, self, is_running=is_rejoin)
        if not self._is_joining:  # otherwise a newer incarnation may be ours, with its answer lost
            await self._refuse_if_newer(database)
        try:
            self._is_joining = True
            joined = await self._register(self._registration, database)
        except (NodeInUse, KeyRefused):  # not applied: a newer incarnation belongs to another process
            self._is_joining = False
            raise
        self._is_joining = False
        self.witness.record_join(joined.epoch, joined.incarnation, joined.beats, joined.last_id)
        self.incarnation, self.joined = joined.incarnation, joined
        if is_rejoin:
            _log.warning(
                "joined again after a rollback: node_id=%s incarnation=%d epoch=%d",
                self.identity.node_id,
                joined.incarnation,
                joined.epoch.number,
            )
            self._on_rejoin()

    async def _register(self, registration: Registration, database: DirectDatabase) -> Joined:
        try:
            return await registration.register(database)
        except KeyRefused as error:
            if isinstance(error, NodeNotAdmitted) or not await self._has_dropped_keys(database):
                raise
        return await registration.register(database)

    async def _has_dropped_keys(self, database: DirectDatabase) -> bool:
        return self.drop_planted_keys is not None and await self.drop_planted_keys(database.apply)

    async def _has_rolled_back(self, database: DirectDatabase) -> bool:
        """Return whether the database was rolled back since this process joined, and prepare to rejoin."""
        if not await self._rollback.is_behind(database, self.identity.node_id, self.joined):
            return False
        self._end = self._acknowledged = self.joined = None
        self._bound, self._sealing = [], Sealing()
        return True

    async def read_end(self, database: DirectDatabase) -> End:
        """Read where the chain ends, without relying on earlier knowledge."""
        rows = await self._ask(database, "chain_tail", None, None, None, 2**63 - 1, 1)
        if not rows:
            return End()
        last = rows[0]
        await self._refuse_unless_signed(last, database)
        self._clock.resume(last["hlc"])
        return End(last["seq"], last["hash"])

    def append_statements(self, end: End, op_id: str, op: Op) -> list[Statement]:
        """Return the statements that append one op; refused unless the chain still ends at `end`."""
        mesh = (*self._mesh, self.identity.chain)
        (entry,) = self._entry_builder.build(self.identity, end, [Script(key=op_id, op=op)], self._sealing)
        guard = Statement(
            _SQL["refuse_unless_chain_ends"], (*mesh, end.hash if end.seq else None), refusal="chain_moved"
        )
        key = Statement(_SQL["record_key"], (*mesh, self.identity.key.public))
        return [guard, key, Statement(_SQL["append_one"], (*mesh, *entry[:12]))]

    # --- the end of the chain --------------------------------------------------------------------

    async def _find_end(self, database: DirectDatabase) -> None:
        """Read the chain from its known end, and take in what other processes appended."""
        known = self._acknowledged
        if known is None:
            if self._registration is None:
                await self._begin_command(database)
            known = End()
            seal, oldest = (await self._ask(database, "seal_and_readers", *READERS))[0]
            self.hear_of_readers(oldest)
            start = seal or 1
        else:
            start = known.seq
        rows = await self._ask(database, "chain_from", start, _PAGE_ENTRIES)
        if known.seq and (not rows or End(rows[0]["seq"], rows[0]["hash"]) != known):
            raise ChainBroken(
                f"the database no longer holds entry {known.seq} of {self.identity.chain}, "
                "which it had acknowledged",
                hint="run `vox-mesh oplog verify`, then start this node again",
            )
        while rows:
            last, is_full = rows[-1], len(rows) == _PAGE_ENTRIES
            more = await self._ask(database, "chain_from", last["seq"] + 1, _PAGE_ENTRIES) if is_full else ()
            if not more and last["seq"] > known.seq:
                await self._refuse_unless_signed(last, database)
            for row in rows:
                if row["seq"] > known.seq:
                    known = self._take_in(row)
            self._acknowledged = known  # if the next page fails, this one is not taken in twice
            rows = more
        self._end = self._acknowledged = known

    async def _refuse_unless_signed(self, last: Row, database: DirectDatabase) -> None:
        """Raise `ChainBroken` unless our key, or the one in force then, signed the last entry."""
        text, signature = chain.signed_text(last["hash"], self._mesh[0]), last["signature"] or ""
        if not is_signed(text, signature, self.identity.key.public):
            key = (await self._ask(database, "key_at", last["seq"])).value
            if not is_signed(text, signature, key or ""):
                raise ChainBroken(
                    f"{self.identity.chain} ends with entry {last['seq']}, which its author did not sign",
                    hint="run `vox-mesh oplog verify`: another process has written to it",
                )

    def _take_in(self, row: Row) -> End:
        verdict = (row["id"], row["seq"], row["accepted"], row["reason"], row["result"], row["signature"])
        self._sealing.add(row["kind"], verdict)
        self._clock.resume(row["hlc"])
        self.witness.record_entry(row["id"], row["op_id"], row["seq"], row["hash"])
        return End(row["seq"], row["hash"])

    async def _begin_command(self, database: DirectDatabase) -> None:
        """Check that a command, which is not registered, has the key known for its node."""
        await self.database_clock.check(database, None)
        await self._refuse_other_key(database)

    async def _refuse_if_not_ours(self, database: DirectDatabase) -> None:
        """Raise if this process was superseded, has another key, or the database's clock has jumped.

        If none of these holds, the request may have been late, and the next ones get more time.
        """
        if self._registration is not None:
            await self._refuse_if_superseded(database)
        else:
            await self._refuse_other_key(database)
        await self.check_clock(database)
        self._clock.was_late(self._started)
        self._guard = None  # its time window may have changed

    async def check_clock(self, database: DirectDatabase) -> None:
        """Ask for the time; raise `DatabaseClockJumped` while a step is not confirmed."""
        observer: Observer | None = None
        if self._registration is not None and self.incarnation is not None:
            observer = Observer((*self._mesh, self.identity.chain), self.incarnation)
        try:
            await self.database_clock.check(database, observer)
        except Refused:  # this incarnation was superseded, or ended by a rollback
            await self._refuse_if_superseded(database)

    async def _refuse_other_key(self, database: DirectDatabase) -> None:
        author = self.identity
        for name in (author.node_id, author.chain):
            found = await database.ask(Statement(_SQL["newest_key"], (*self._mesh, name)))
            if found and found.value != author.key.public and not await self._has_dropped_keys(database):
                raise key_refused(name, author.key.public)
        if not self.is_recovering:
            await self._refuse_if_unadmitted(database)

    async def _refuse_if_unadmitted(self, database: DirectDatabase) -> None:
        author = self.identity
        own = (author.node_id, author.key.public)
        if (await database.ask(Statement(_NODES["is_unadmitted"], (*self._mesh, *own)))).value:
            raise not_admitted(*own)

    async def _refuse_if_superseded(self, database: DirectDatabase) -> None:
        if self.joined is None or await self._has_rolled_back(database):
            return
        now = await self._incarnation_now(database)
        if now != self.incarnation:
            await self._refuse_if_unadmitted(database)
            raise self._superseded_error(now)

    async def _refuse_if_newer(self, database: DirectDatabase) -> None:
        """Raise if another process of this node is newer, or has joined since the rollback.

        A rollback raises all incarnations by the same amount: the remainders show which is newer.
        """
        if self.incarnation is None:
            return
        rows = await database.ask(Statement(_NODES["current_process"], (*self._mesh, self.identity.node_id)))
        for row in rows:
            now = whole_number(row["incarnation"], "the incarnation")
            if row["has_joined"] or now % INCARNATIONS_RAISED_BY > self.incarnation % INCARNATIONS_RAISED_BY:
                raise self._superseded_error(now)

    async def _incarnation_now(self, database: DirectDatabase) -> int | None:
        rows = await database.ask(Statement(_NODES["incarnation"], (*self._mesh, self.identity.node_id)))
        return rows.value if rows else None

    def _superseded_error(self, now: int | None) -> StaleIncarnation:
        return StaleIncarnation(
            f"node {self.identity.node_id} was started again elsewhere: "
            f"this process is incarnation {self.incarnation}, the database knows {now}",
            hint="stop this process",
        )

    async def _ask(self, database: DirectDatabase, name: str, *values: Value) -> Any:
        return await database.ask(Statement(_SQL[name], (*self._mesh, self.identity.chain, *values)))
