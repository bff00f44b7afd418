"""The op log: which ops were written, by which author, in which order, and with which verdict."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from vox_mesh.errors import BadValue, MeshError
from vox_mesh.model.base.canonical import JsonObject, canonical, parse
from vox_mesh.model.base.durations import Duration, seconds_or_none
from vox_mesh.model.base.ulid import is_ulid
from vox_mesh.model.grants.needs import acts_of_op
from vox_mesh.model.nodes.store_memory import ROLLED_BACK
from vox_mesh.model.oplog.chain import ANCHOR, LogEntry
from vox_mesh.model.oplog.checkpoint import LogCheckpoint
from vox_mesh.model.oplog.deletion import DeletedEntries
from vox_mesh.model.oplog.op_names import CLOCK_STEPPED
from vox_mesh.model.oplog.verification import (
    ChainReport,
    ChainWitness,
    Key,
    RecordedHead,
)
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.database_clock import ConfirmedStep
from vox_mesh.oplog.audits.log_verification import LogVerification, Moment
from vox_mesh.oplog.audits.route_audit import RouteAudit
from vox_mesh.oplog.grants.grant_log import GrantLog
from vox_mesh.oplog.grants.permit import Permit
from vox_mesh.oplog.grants.permits import Permits
from vox_mesh.oplog.op_kinds import AuthoredOp, OpKind, OpKinds
from vox_mesh.oplog.pages import MAX_POSITION, EntryFilter, Pages
from vox_mesh.oplog.past import LogPast
from vox_mesh.oplog.pending_ops import DependencyState, PendingOps, no_such_op
from vox_mesh.oplog.roles import Roles
from vox_mesh.oplog.sealed_verdicts import seal_script
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.oplog.witness import RememberedStore
from vox_mesh.oplog.writer import READERS, OpLogWriter
from vox_mesh.store.rows import Rows, Value
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Outcome, Script, Statement, new_key
from vox_mesh.store.store import Store
from vox_mesh.store.targets.target import FileTarget

_SQL: Final = named("oplog")
_MAX_DEPS: Final = 256
_MAX_VERIFICATIONS: Final = 3
_FOLLOWED: Final = 100
_REST_FACTOR: Final = 10
"""The number of entries that are read ahead of a follower, who may be slow."""


Heads = dict[str, list[Any]]
"""The number and hash of the last entry of each chain."""


class OpLog:
    """Append to the chain of this process, and read all chains."""

    def __init__(
        self,
        store: Store,
        writer: OpLogWriter,
        clock: MeshClock,
        kinds: OpKinds,
        roles: Roles,
        pending_ops: PendingOps,
        trusted_keys: TrustedKeys,
        past: LogPast,
        grant_log: GrantLog,
        permits: Permits,
        remembered: Callable[[], Sequence[RememberedStore]] = tuple,
    ) -> None:
        """`remembered` returns what nodes of this home remember of the database."""
        self._store = store
        self._writer = writer
        self._clock = clock
        self._kinds = kinds
        self._roles = roles
        self._pending = pending_ops
        self._trusted_keys = trusted_keys
        self._permits = permits
        self._pages = Pages(store)
        self._verification = LogVerification(store, roles, trusted_keys, past, grant_log, remembered)

    # --- writing ---------------------------------------------------------------------------------

    def register(self, kind: OpKind) -> None:
        """Register a kind of op with this process."""
        self._kinds.register(kind)

    def can_append(self, kind: str) -> bool:
        """Return whether this process knows a kind of op that users author, whatever their role."""
        return self._kinds.is_for_all(kind)

    async def append(
        self,
        kind: str,
        payload: JsonObject,
        *,
        deps: Sequence[str] = (),
        key: str | None = None,
        timeout: Duration | None = None,
    ) -> Outcome:
        """Append an op, and apply it or defer it until its dependencies are applied.

        The op's id is the outcome's key. A refused op is appended too, as refused, and raises `Refused`.
        While the database is unreachable, it is spooled if its kind allows it and it has no `deps`.
        """
        timeout_s = seconds_or_none("timeout", timeout)
        known = self._kinds.find_authorable(kind)
        if not known.ends_something:
            self._clock.refuse_if_off()
        text = canonical(payload)

        async def append(permit: Permit) -> Outcome:
            if deps or known.does_something:
                return await self._append(known, payload, deps, key, timeout_s, permit)
            script = permit.script(op=Op(kind, text), key=key, appendable=known.can_spool)
            return await self._store.write(script, timeout=timeout_s)

        return await self._permits.attempt(lambda: acts_of_op(kind, text), append)

    async def _append(
        self,
        kind: OpKind,
        payload: JsonObject,
        deps: Sequence[str],
        key: str | None,
        timeout_s: float | None,
        permit: Permit,
    ) -> Outcome:
        """Append an op that has effects, or depends on others."""
        op_id = permit.key or key or new_key()
        standing = await self._dependency_state(kind, op_id, deps)
        statements = await self._statements(kind, op_id, payload, deps, standing)
        remark = "deferred" if standing is DependencyState.DEFERRED else None
        op = Op(kind.name, canonical(payload), tuple(deps), kind.owner_only, remark)
        script = permit.script(*statements, key=op_id, op=op, appendable=kind.can_spool and not deps)
        script.may_come_again = key is not None  # no other process sends a generated key
        outcome = await self._store.write(script, timeout=timeout_s)
        if standing is DependencyState.DEFERRED and not outcome.spooled:
            # It is stored: if this fails (database unreachable, clock off), a node applies it later.
            with suppress(MeshError):
                await self._pending.run_once()  # its dependencies may have been applied meanwhile
        return outcome

    async def _statements(
        self, kind: OpKind, op_id: str, payload: JsonObject, deps: Sequence[str], standing: DependencyState
    ) -> list[Statement]:
        guards = [*await self._roles.guards(kind)]
        if standing is DependencyState.REFUSED:
            return [*guards, self._roles.refusal("dependency_refused")]
        if standing is DependencyState.DEFERRED:
            return [*guards, *self._pending.defer(op_id, deps)]
        if deps:
            guards.append(self._pending.applied_guard(deps))
        return [*guards, *kind.effects(AuthoredOp(op_id, self._writer.identity.chain, payload))]

    async def _dependency_state(self, kind: OpKind, op_id: str, deps: Sequence[str]) -> DependencyState:
        if not deps:
            return DependencyState.APPLIED
        if kind.owner_only:
            raise BadValue(f"op of kind {kind.name} can't depend on other ops", hint="pass no deps")
        if not all(map(is_ulid, deps)) or len(set(deps)) != len(deps) or len(deps) > _MAX_DEPS:
            raise BadValue(
                f"deps must be up to {_MAX_DEPS} different op ids, got {len(deps)}",
                hint="run `vox-mesh oplog tail` to see the ids",
            )
        if op_id in deps:
            return DependencyState.DEFERRED  # refused later as a cycle
        return await self._pending.state_after(deps)

    async def anchor(self) -> Outcome:
        """Record where all other chains end, so that truncating one can be detected."""
        self._clock.refuse_if_off()
        return await self._store.write(self.anchor_script(await self.heads()))

    def anchor_script(self, heads: Heads) -> Script:
        """Return the script of an op that records where these chains end."""
        values = (*self._store.mesh_id, canonical(heads))
        guard = Statement(_SQL["refuse_unless_heads"], values, refusal="heads_changed")
        return Script(guard, op=Op(ANCHOR, canonical({"heads": heads})))

    async def heads(self) -> Heads:
        """Return where all other chains end."""
        rows = await self._read("heads", fresh=True)
        for row in rows:
            self._clock.receive(row["hlc"])
        own = self._writer.identity.chain
        return {row["node_id"]: [row["seq"], row["hash"]] for row in rows if row["node_id"] != own}

    def seal_script(self) -> Script:
        """Return the script of an op that covers all verdicts so far; its payload is computed at binding."""
        return seal_script()

    def clock_step_script(self, step: ConfirmedStep) -> Script:
        """Return the script of an op that records a step of the database's clock."""
        return Script(op=Op(CLOCK_STEPPED, canonical(step._asdict())))

    async def hear_of_readers(self) -> None:
        """Find out which forms of entries every live node reads: new entries have no other."""
        rows = await self._read("seal_and_readers", self._writer.identity.chain, *READERS, fresh=True)
        self._writer.hear_of_readers(rows[0]["oldest"])

    @property
    def routes(self) -> RouteAudit:
        """Return the audit of routes."""
        return self._verification.routes

    @property
    def is_seal_due(self) -> bool:
        """Return whether there are verdicts that no seal covers."""
        return self._writer.is_seal_due

    # --- reading ---------------------------------------------------------------------------------

    async def tail(
        self,
        limit: int = 20,
        *,
        node_id: str | None = None,
        kind: str | None = None,
        agent: str | None = None,
        job_id: str | None = None,
    ) -> list[LogEntry]:
        """Return the last entries, in the order of their commits."""
        found = await self._pages.newest(limit, EntryFilter(node_id, kind, agent, job_id))
        self._merge_times(found)
        return found[::-1]

    async def after(
        self,
        after_id: int,
        limit: int,
        *,
        node_id: str | None = None,
        kind: str | None = None,
        agent: str | None = None,
        job_id: str | None = None,
        up_to: int = MAX_POSITION,
    ) -> list[LogEntry]:
        """Return up to `limit` entries committed after the one with this id, and up to another one."""
        found: list[LogEntry] = []
        which = EntryFilter(node_id, kind, agent, job_id)
        while len(found) < limit:
            page = await self._pages.after(after_id, up_to, which, limit - len(found))
            if not page:
                break
            found += page
            after_id = page[-1].id
        self._merge_times(found)
        return found

    async def before(
        self, before_id: int, limit: int, wanted: EntryFilter, *, down_to: int = 0
    ) -> list[LogEntry]:
        """Return up to `limit` entries committed before the one with this id, newest first."""
        found = await self._pages.before(before_id, down_to, wanted, limit)
        self._merge_times(found)
        return found

    async def follow(
        self,
        after_id: int,
        *,
        node_id: str | None = None,
        kind: str | None = None,
        agent: str | None = None,
        job_id: str | None = None,
        max_rest_s: float = 0.0,
    ) -> AsyncGenerator[LogEntry, None]:
        """Yield the entries committed after the one with this id, without end; outages are waited out.

        `max_rest_s`: after each read, it rests several times as long as the read took, but no longer.
        """
        which = EntryFilter(node_id, kind, agent, job_id)
        loop = asyncio.get_running_loop()
        async for turn in self._store.changes():
            began = loop.time()
            newest, page = after_id, list[LogEntry]()
            with turn.retry_if_unavailable():
                newest = await self.last_id()
                if newest < after_id:
                    after_id = await self._after_rollback(after_id)
                page = await self._pages.after(after_id, wanted=which, limit=_FOLLOWED)
            turn.rest(min(_REST_FACTOR * (loop.time() - began), max_rest_s))
            self._merge_times(page)
            for entry in page:
                after_id = entry.id
                yield entry
            if page:
                turn.wake()  # there may be more
            else:
                after_id = max(after_id, newest)  # skip the entries that do not match

    async def _after_rollback(self, after_id: int) -> int:
        """Return the id to continue after, if the log ends before an id already seen."""
        newest: int = (await self._read("last_id", fresh=True)).value or 0
        if newest >= after_id:
            return after_id  # only our copy was behind
        for entry in await self._pages.newest(1, EntryFilter(kind=ROLLED_BACK)):
            log = parse(entry.payload)["log"]
            if log["known_id"] >= after_id:
                return min(newest, int(log["last_id"]))
        return newest

    async def last_id(self) -> int:
        """Return the id of the entry committed last; 0 if there is none."""
        return (await self._read("last_id")).value or 0

    async def find(self, op_id: str) -> LogEntry:
        """Return the entry of an op; raise `NotKnown` if there is none."""
        rows = await self._read("entries_of", canonical([op_id]))
        if not rows:
            missing = no_such_op(op_id)
            if await self.deleted():
                missing.hint = "an old op may be in the archive only: see docs/guides/archive.md"
            raise missing
        entry = LogEntry._make(rows[0])
        self._merge_times([entry])
        return entry

    async def is_authentic(self, entry: LogEntry) -> bool:
        """Return whether the author signed the entry, or one that follows it in the chain."""
        return await self._trusted_keys.is_authentic(entry)

    async def has_changed_verdict(self, entry: LogEntry) -> bool:
        """Return whether the verdict of an entry, or one near it, was changed since its author sealed it."""
        return await self._trusted_keys.has_changed_verdict(entry)

    async def deleted(self) -> DeletedEntries:
        """Return the archived entries that may be missing in the database."""
        return await self._roles.deletions.deleted()

    async def trusted_keys(self, chain: str) -> list[Key]:
        """Return the keys of a chain that its own entries or the owner vouch for."""
        return await self._trusted_keys.of_chain(chain)

    def _merge_times(self, entries: Sequence[LogEntry]) -> None:
        """Merge the times of the entries, so that ops written after reading them get later times."""
        if entries:
            self._clock.receive(max(str(entry.hlc) for entry in entries))

    def entries(self, node_id: str | None = None, up_to: int | None = None) -> AsyncIterator[list[LogEntry]]:
        """Yield all entries in pages, chain by chain and in order.

        `up_to`: only those committed up to this id.
        """
        return self._pages.entries(node_id, up_to)

    # --- verifying -------------------------------------------------------------------------------

    async def keys(self) -> list[Key]:
        """Return the keys of all chains."""
        return await self._verification.keys()

    async def moment(self) -> Moment:
        """Return a consistent view of the log while others write: its keys are those of its entries."""
        return await self._verification.moment()

    async def witness(self, keys: Sequence[Key] = ()) -> ChainWitness:
        """Return a witness that knows the owner of the mesh."""
        return await self._roles.witness(keys)

    async def verify(
        self,
        node_id: str | None = None,
        heads: Sequence[RecordedHead] = (),
        archive: FileTarget | None = None,
        since: LogCheckpoint | None = None,
    ) -> list[ChainReport]:
        """Recompute all chains, or one, and replay routes, grants and admissions. Return the reports.

        The chains must have the heads that were recorded elsewhere, and the ones that nodes of this home
        remember. With an archive, its files are read too. With a checkpoint that the log still fits, the
        chains are recomputed from there on. It yields to the event loop.

        Raises:
            SchemaDiffers: A trigger or another object in the database could change what is written.
        """
        return await self._verification.verify(node_id, heads, archive, since)

    @property
    def checkpoint(self) -> LogCheckpoint | None:
        """Return how far the log was verified last; `None` if it was not, or was found broken."""
        return self._verification.checkpoint

    async def verify_chains(self) -> list[ChainReport]:
        """Recompute all chains, and nothing else. Return a report on each."""
        return await self._verification.verify_chains()

    @property
    def found_broken(self) -> int:
        """Return how many chains this process has found broken, by verifying or by appending."""
        return self._verification.found_broken + self._writer.found_broken

    async def _read(self, name: str, *values: Value, fresh: bool = False) -> Rows:
        return await self._store.read(_SQL[name], (*self._store.mesh_id, *values), fresh=fresh)
