"""The op log: which ops were written, by which author, in which order, and with which verdict."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadValue, MeshError
from vox_mesh.model.base.canonical import JsonObject, canonical, parse
from vox_mesh.model.base.durations import Duration, seconds_or_none
from vox_mesh.model.base.ulid import is_ulid
from vox_mesh.model.grants.needs import acts_of_op
from vox_mesh.model.nodes.store_memory import ROLLED_BACK
from vox_mesh.model.oplog.authorship import Owner
from vox_mesh.model.oplog.chain import ANCHOR, LogEntry
from vox_mesh.model.oplog.findings import with_findings
from vox_mesh.model.oplog.op_names import CLOCK_STEPPED
from vox_mesh.model.oplog.verification import (
    WITNESSES,
    ChainReport,
    ChainWitness,
    Key,
    LogCheck,
    RecordedHead,
)
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.database_clock import ConfirmedStep
from vox_mesh.oplog.audits.causal_audit import CausalAudit
from vox_mesh.oplog.audits.grant_log_audit import GrantLogAudit
from vox_mesh.oplog.audits.mail_audit import MailAudit
from vox_mesh.oplog.audits.node_audit import NodeAudit
from vox_mesh.oplog.audits.route_audit import RouteAudit
from vox_mesh.oplog.grants.grant_log import GrantLog
from vox_mesh.oplog.grants.permit import Permit
from vox_mesh.oplog.grants.permits import Permits
from vox_mesh.oplog.op_kinds import AuthoredOp, OpKind, OpKinds
from vox_mesh.oplog.pages import MAX_POSITION, EntryFilter, Pace, Pages
from vox_mesh.oplog.past import LogPast
from vox_mesh.oplog.pending_ops import DependencyState, PendingOps, no_such_op
from vox_mesh.oplog.roles import Roles
from vox_mesh.oplog.sealed_verdicts import seal_script
from vox_mesh.oplog.trusted_keys import TrustedKeys
from vox_mesh.oplog.witness import RememberedStore
from vox_mesh.oplog.writer import READERS, OpLogWriter
from vox_mesh.store.rows import Rows, Value
from vox_mesh.store.schema.schema import VERSION, check_schema
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Op, Outcome, Script, Statement, new_key
from vox_mesh.store.store import Store

_SQL: Final = named("oplog")
_MAX_DEPS: Final = 256
_MAX_VERIFICATIONS: Final = 3
_FOLLOWED: Final = 100
"""The number of entries that are read ahead of a follower, who may be slow."""


Heads = dict[str, list[Any]]
"""The number and hash of the last entry of each chain."""


class LogEnd(NamedTuple):
    """The entry committed last, at some moment; without an op if there was none."""

    entry_id: int = 0
    op_id: str | None = None


class Moment(NamedTuple):
    """The log as of one commit; later commits are not part of it."""

    owner: Owner | None
    keys: list[Key]
    end: LogEnd


class _Verified(NamedTuple):
    """The reports on a log, and where it ended."""

    reports: list[ChainReport]
    end: LogEnd


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
        self._past = past
        self._permits = permits
        self._remembered = remembered
        self._pages = Pages(store)
        self.routes = RouteAudit(store, roles)
        self._grants = GrantLogAudit(store, grant_log)
        self._causes = CausalAudit(store)
        self._mail = MailAudit(store, trusted_keys)
        self._nodes = NodeAudit(store, trusted_keys)
        self._found_broken = 0

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
        """Name agents in new entries from now on, if every live node knows such entries."""
        if not self._writer.names_agents:
            rows = await self._read("seal_and_readers", self._writer.identity.chain, *READERS, fresh=True)
            self._writer.hear_of_readers(rows[0]["oldest"])

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

    async def follow(
        self,
        after_id: int,
        *,
        node_id: str | None = None,
        kind: str | None = None,
        agent: str | None = None,
        job_id: str | None = None,
    ) -> AsyncGenerator[LogEntry, None]:
        """Yield the entries committed after the one with this id, without end; outages are waited out."""
        which = EntryFilter(node_id, kind, agent, job_id)
        async for turn in self._store.changes():
            newest, page = after_id, list[LogEntry]()
            with turn.retry_if_unavailable():
                newest = await self.last_id()
                if newest < after_id:
                    after_id = await self._after_rollback(after_id)
                page = await self._pages.after(after_id, wanted=which, limit=_FOLLOWED)
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
            raise no_such_op(op_id)
        entry = LogEntry._make(rows[0])
        self._merge_times([entry])
        return entry

    async def is_authentic(self, entry: LogEntry) -> bool:
        """Return whether the author signed the entry, or one that follows it in the chain."""
        return await self._trusted_keys.is_authentic(entry)

    async def has_changed_verdict(self, entry: LogEntry) -> bool:
        """Return whether the verdict of an entry, or one near it, was changed since its author sealed it."""
        return await self._trusted_keys.has_changed_verdict(entry)

    async def trusted_keys(self, chain: str) -> list[Key]:
        """Return the keys of a chain that its own entries or the owner vouch for."""
        return await self._trusted_keys.of_chain(chain)

    def _merge_times(self, entries: Sequence[LogEntry]) -> None:
        """Merge the times of the entries, so that ops written after reading them get later times."""
        if entries:
            self._clock.receive(max(str(entry.hlc) for entry in entries))

    async def entries(
        self, node_id: str | None = None, up_to: int | None = None
    ) -> AsyncIterator[list[LogEntry]]:
        """Yield all entries in pages, chain by chain and in order.

        `up_to`: only those committed up to this id.
        """
        chain, seq = node_id or "", -(2**63)  # from the first, including invalid names and numbers
        last_id: int | None = None
        while True:
            if node_id is None:
                page = await self._pages.read("chain_page", chain, seq, up_to, last_id)
            else:
                page = await self._pages.read("page_of_chain", chain, seq, up_to, last_id)
            if not page:
                return
            yield page
            last_id, seq = page[-1].id, page[-1].seq
            chain = node_id or page[-1].node_id

    # --- verifying -------------------------------------------------------------------------------

    async def keys(self) -> list[Key]:
        """Return the keys of all chains."""
        return [Key._make(row) for row in await self._read("keys")]

    async def moment(self) -> Moment:
        """Return a consistent view of the log while others write: its keys are those of its entries."""
        keys = await self.keys()
        while True:
            end = await self._end()
            before, keys = keys, await self.keys()
            if keys == before:
                return Moment(await self._roles.owner(), keys, end)

    async def witness(self, keys: Sequence[Key] = ()) -> ChainWitness:
        """Return a witness that knows the owner of the mesh."""
        return await self._roles.witness(keys)

    async def verify(
        self, node_id: str | None = None, heads: Sequence[RecordedHead] = ()
    ) -> list[ChainReport]:
        """Recompute all chains, or one, and replay routes, grants and admissions. Return the reports.

        The chains must have the heads that were recorded elsewhere, and the ones that nodes of this home
        remember. It yields to the event loop.

        Raises:
            SchemaDiffers: A trigger or another object in the database could change what is written.
        """
        await check_schema(self._ask, VERSION)
        return await self._read_whole(lambda: self._verify(node_id, heads))

    async def verify_chains(self) -> list[ChainReport]:
        """Recompute all chains, and nothing else. Return a report on each."""
        return await self._read_whole(lambda: self._verify_chains(None, ()))

    async def _read_whole(self, read: Callable[[], Awaitable[_Verified]]) -> list[ChainReport]:
        """Verify the log. If it was rolled back meanwhile, what was found is of two logs: verify it again."""
        for _ in range(_MAX_VERIFICATIONS):
            began_at = await self._end()
            reports, end = await read()
            if not any(each.problem for each in reports) or await self._has_entries(began_at, end):
                break
        self._found_broken += sum(bool(each.node_id and each.problem) for each in reports)
        return reports

    async def _verify(self, node_id: str | None, heads: Sequence[RecordedHead]) -> _Verified:
        past = await self._past.compare(self._remembered())  # before the log is read, which only grows
        heads = [*heads, *past.heads, *await self._nodes.heads()]
        reports, end = await self._verify_chains(node_id, heads)
        findings = await self.routes.findings(self.entries, node_id, end.entry_id)
        findings += await self._grants.findings(self.entries, node_id, end.entry_id)
        findings += await self._nodes.findings(node_id)
        findings += await self._causes.findings(node_id, end.entry_id)
        reports = with_findings(reports, findings)
        if node_id is None:
            reports += [*past.reports, *await self._mail.reports()]
        return _Verified(reports, end)

    async def _verify_chains(self, node_id: str | None, heads: Sequence[RecordedHead]) -> _Verified:
        _, keys, end = await self.moment()
        witness = await self.witness(keys)
        pace = Pace()
        for kind in WITNESSES:
            async for entry in self._pages.of_kind(kind):
                if entry.id <= end.entry_id:
                    witness.hear(entry)
                await pace.keep(entry.payload)
        for head in heads:
            witness.hear_head(head)
        check = LogCheck(witness)
        async for page in self.entries(node_id, end.entry_id):
            for entry in page:
                check.check(entry)
                await pace.keep(entry.payload)
        return _Verified(check.finish(node_id), end)

    async def _end(self) -> LogEnd:
        rows = await self._read("last_entry")
        return LogEnd(*rows[0]) if rows else LogEnd()

    async def _has_entries(self, *ends: LogEnd) -> bool:
        """Return whether these entries, and so all before them, are still in the log."""
        ids = canonical([end.op_id for end in ends])
        found = {LogEnd(row["id"], row["op_id"]) for row in await self._read("entries_of", ids, fresh=True)}
        return found.issuperset(end for end in ends if end.op_id is not None)

    @property
    def found_broken(self) -> int:
        """Return how many chains this process has found broken, by verifying or by appending."""
        return self._found_broken + self._writer.found_broken

    async def _ask(self, statement: Statement) -> Rows:
        return await self._store.read(statement.sql, statement.params, fresh=True)

    async def _read(self, name: str, *values: Value, fresh: bool = False) -> Rows:
        return await self._store.read(_SQL[name], (*self._store.mesh_id, *values), fresh=fresh)
