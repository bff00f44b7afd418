"""Rules: when an op is logged, a job is scheduled, once, by the first node that gets to it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import BadValue, MeshError, Refused
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.jobs.scheduling.definition_table import DefinitionTable
from vox_mesh.jobs.scheduling.job_template import JobTemplate
from vox_mesh.jobs.scheduling.rule_ops import RuleOps, adding, removing
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.scheduling.rule import RuleDefinition, check_payload, field_filter, nonce_of, with_op
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.observability import tracing
from vox_mesh.observability.throttled_logger import ThrottledLogger
from vox_mesh.oplog.op_kinds import WRITTEN_BY_JOBS, OpKinds
from vox_mesh.oplog.pages import EntryFilter, Pages
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.store import Store

_log = logging.getLogger(__name__)

FIRED: Final = "rule_fired"
"""The refusal of a node that fires for an op for which another node has fired."""

MAX_RULES: Final = 100
MAX_PER_MINUTE: Final = 60
"""The most jobs of a rule in a minute; ops beyond that wait for the next one."""

_TOO_MANY: Final = "too_many_rules"
_MINUTE_MS: Final = 60_000
_SQL: Final = named("rules")
_OPLOG: Final = named("oplog")
_PAGE: Final = 100
_WINDOW: Final = 1_000
"""How many entries are considered at a time. A rule that none of them fires is advanced past them."""
_MAX_WINDOWS: Final = 100


class _LogPlace(NamedTuple):
    """An entry of the log. If it is there, so is all that was committed before it."""

    id: int
    op_id: str


_NOWHERE: Final = _LogPlace(0, "")


class Rule(NamedTuple):
    """A stored rule; `manifest` is the core of its jobs without the nonce and the op."""

    name: str
    op_kind: str
    fields: str
    manifest: str
    options: str
    position: int
    fired: int
    minute_ms: int
    last_op: str | None
    last_job: str | None
    added_ms: int

    @property
    def definition(self) -> RuleDefinition:
        """Return its definition, which an op must have."""
        return RuleDefinition(self.op_kind, self.fields, self.manifest, self.options)

    def at(self, now_ms: int) -> Rule:
        """Return the rule with the count of jobs of the present minute."""
        is_over = not 0 <= now_ms - self.minute_ms < _MINUTE_MS
        return self._replace(fired=0, minute_ms=now_ms) if is_over else self

    def job_for(self, entry: LogEntry) -> Manifest:
        """Return the manifest of the job for an op, identical on every node."""
        template = JobTemplate(self.manifest, self.options)
        return with_op(template.job(nonce_of(self.name, entry)), entry)


class _Scan:
    """A rule, and the last entry of the log that it need not consider again."""

    def __init__(self, rule: Rule, position: int) -> None:
        self.rule = rule
        self.position = position

    def fires_on(self, entry: LogEntry) -> bool:
        return entry.id > self.position and self.rule.definition.matches(entry)


class Rules:
    """Adds, removes and fires rules. Any number of nodes may do so concurrently."""

    def __init__(self, store: Store, jobs: Jobs, clock: MeshClock, kinds: OpKinds) -> None:
        self._store = store
        self._mesh = store.mesh_id
        self._jobs = jobs
        self._clock = clock
        self._kinds = kinds
        self._ops = RuleOps(store, jobs.trusted_keys)
        self._table = DefinitionTable("rule", store, _SQL, self._ops, Rule._make, jobs.permits)
        self._pages = Pages(store)
        self._log_throttled = ThrottledLogger(_log)
        self._end = _NOWHERE  # of the log when all rules had considered it

    async def add(
        self,
        name: str,
        op_kind: str,
        manifest: Manifest | Mapping[str, Any],
        fields: Mapping[str, Any] | None = None,
    ) -> Rule:
        """Add a rule that schedules a job for each op of a kind from now on. Adding it again changes nothing.

        `fields` limits it to ops with these values in their payload. A manifest may be given by its fields.
        Raises `BadValue` if another rule has this name, or for a kind to which jobs themselves lead.
        """
        if not isinstance(manifest, Manifest):
            manifest = Manifest.of(**manifest)
        self._table.check_name(name)
        check_payload(manifest)
        wanted = RuleDefinition(op_kind, field_filter(fields or {}), *JobTemplate.of(manifest, "rule"))
        await self._check_kind(op_kind)
        await self._jobs.refuse_unknown_phases([manifest])
        return await self.define(name, wanted)

    async def define(self, name: str, definition: RuleDefinition) -> Rule:
        """Add a rule as `add` does, given as an op has it."""
        limit = self._table.statement("refuse_if_many", name, MAX_RULES, refusal=_TOO_MANY)
        try:
            return await self._table.add(name, definition, adding(name, definition), guards=[limit])
        except Refused as refused:
            if refused.reason != _TOO_MANY:
                raise
            raise BadValue(f"a mesh has at most {MAX_RULES} rules", hint="remove one first") from None

    async def _check_kind(self, kind: str) -> None:
        if kind in WRITTEN_BY_JOBS:
            raise BadValue(
                f"a rule can't fire on {kind}: its own jobs lead to such ops",
                hint="use `after` in a manifest, or a workflow, to run a job after another one",
            )
        if kind not in self._kinds and not await self._pages.newest(1, EntryFilter(kind=kind)):
            raise BadValue(
                f"op kind {kind!r} not found",
                hint="register it with mesh.oplog.register, or append such an op first",
            )

    async def listed(self) -> list[Rule]:
        """Return all rules by name."""
        return await self._table.listed()

    async def remove(self, name: str) -> None:
        """Remove a rule; jobs it has scheduled stay. Raises `NotKnown` if there is none."""
        await self._table.remove(name, removing(name))

    # --- firing ----------------------------------------------------------------------------------

    async def fire(self) -> list[str]:
        """Schedule the jobs for the new ops according to the replica, and return their ids."""
        self._clock.refuse_if_off()
        rows = await self._store.read(_OPLOG["last_entry"], self._mesh)
        end = _LogPlace._make(rows[0]) if rows else _NOWHERE
        if end == self._end:
            return []
        await self._ops.refresh()
        scans = await self._start_scans()
        fired: list[str] = []
        is_complete = True
        for _ in range(_MAX_WINDOWS):
            behind = [each for each in scans if each.position < end.id]
            if not behind:
                break
            start = min(each.position for each in behind)
            up_to = min(end.id, start + _WINDOW)
            kinds = sorted({each.rule.op_kind for each in behind})
            page = await self._pages.accepted_of_kinds(kinds, start, up_to, limit=_PAGE)
            for scan in behind:
                if await self._consider(scan, page, fired):
                    scan.position = max(scan.position, page[-1].id if page else up_to)
                else:
                    scans.remove(scan)
                    is_complete = False
        await self._advance([each for each in scans if each.position - each.rule.position >= _WINDOW], end)
        if is_complete and all(each.position >= end.id for each in scans):
            self._end = end
        return fired

    async def _start_scans(self) -> list[_Scan]:
        """Return the rules that signed ops have added as they are stored, and where each goes on."""
        names = orjson.dumps([*self._ops.definitions]).decode()
        scans: list[_Scan] = []
        for rule in map(Rule._make, await self._store.read(_SQL["to_fire"], (*self._mesh, names, MAX_RULES))):
            if rule.definition != self._ops.definitions[rule.name]:
                text = "rule not fired, no signed op adds it with this definition: rule=%s"
                self._log_throttled(logging.ERROR, text, rule.name)
                continue
            # Whatever the row says, not before the op that added it.
            scans.append(_Scan(rule, max(rule.position, self._ops.since[rule.name])))
        return scans

    async def _consider(self, scan: _Scan, page: Sequence[LogEntry], fired: list[str]) -> bool:
        """Fire a rule for the entries of a page; `False` if it does not go on for now."""
        for entry in page:
            if not scan.fires_on(entry):
                continue
            if not await self._is_genuine(entry):
                text = "rule not fired, the op is not its author's: rule=%s op_id=%s node_id=%s"
                self._log_throttled(logging.ERROR, text, scan.rule.name, entry.op_id, entry.node_id)
                continue
            rule = scan.rule = scan.rule.at(self._clock.now_ms)
            if rule.fired >= MAX_PER_MINUTE:
                text = "rule delayed, it has scheduled %d jobs in a minute: rule=%s"
                self._log_throttled(logging.WARNING, text, rule.fired, rule.name)
                return False
            if not await self._fire(scan, entry):
                return False
            fired.append(str(scan.rule.last_job))
        return True

    async def _is_genuine(self, entry: LogEntry) -> bool:
        """Return whether its author signed the op, and no seal of the author says that it was refused."""
        trusted_keys = self._jobs.trusted_keys
        return await trusted_keys.is_authentic(entry) and not await trusted_keys.has_changed_verdict(entry)

    async def _fire(self, scan: _Scan, entry: LogEntry) -> bool:
        """Schedule the job for an op and advance the rule, in one write; `False` if another node has."""
        rule = scan.rule
        try:
            item = self._jobs.item(rule.job_for(entry))
        except (MeshError, TypeError, ValueError) as error:  # of another version, or hostile
            self._log_throttled(logging.ERROR, "rule left to other nodes: rule=%s: %s", rule.name, error)
            return False
        job_id = item["job_id"]
        fired = rule._replace(position=entry.id, last_op=entry.op_id, last_job=job_id, fired=rule.fired + 1)
        values = (rule.name, fired.position, fired.last_op, fired.last_job, fired.fired, fired.minute_ms)
        began = tracing.began()
        script = self._jobs.transitions.schedule(
            [item],
            self._guard(rule, _LogPlace(entry.id, entry.op_id)),
            self._table.statement("advance_and_fire", *values),
            causes=[entry.op_id],
        )
        if not await self._write_if_next(script):
            return False
        scan.rule, scan.position = fired, entry.id
        tracing.record_jobs("job schedule", [(job_id, {"vox.rule": rule.name})], began)
        _log.info("rule fired: rule=%s op_id=%s job_id=%s", rule.name, entry.op_id, job_id)
        return True

    async def _advance(self, scans: Sequence[_Scan], end: _LogPlace) -> None:
        """Store how far rules have come that no op has fired for long, so that no node starts over."""
        for scan in scans:
            step = self._table.statement("advance", scan.rule.name, scan.position)
            await self._write_if_next(Script(self._guard(scan.rule, end), step))

    def _guard(self, rule: Rule, read: _LogPlace) -> Statement:
        values = (rule.name, rule.position, rule.added_ms, *read)
        return self._table.statement("refuse_unless_at", *values, refusal=FIRED)

    async def _write_if_next(self, script: Script) -> bool:
        try:
            await self._store.write(script)
        except Refused as refused:
            if refused.reason != FIRED:
                raise
            return False
        return True
