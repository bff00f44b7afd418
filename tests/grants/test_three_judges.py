"""Three judges agree on every act: the model of grants, the guard in the database, and the audit of the log.

A history is drawn step by step. After each step every agent acts without a grant, and by each grant, its own
or not. The log takes in all of these acts, also the ones that the others refuse.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import cycle
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.running.examples import many
from tests.support.running.lengths import SOAK
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.model.base.ulid import UlidSource
from vox_mesh.model.grants.approval import ApprovalHistory
from vox_mesh.model.grants.audit import GrantAudit
from vox_mesh.model.grants.grant import Grant, SignedGrant, Terms, delegation_fault
from vox_mesh.model.grants.history import AdmittedAgent, GrantHistory
from vox_mesh.model.grants.needs import acts_of_op
from vox_mesh.model.grants.templates import capabilities_of
from vox_mesh.model.oplog.chain import COMMANDS, LogEntry
from vox_mesh.model.oplog.verification import ADMIT, DELEGATE, GRANT, REVOKE, STRICT
from vox_mesh.oplog.grants.grants import MAX_DELEGATIONS
from vox_mesh.oplog.grants.permit import grant_guard
from vox_mesh.store.schema.statements import NOW_MS, ddl, named

MESH: Final = ("scope", "repository")
OWNER: Final = "owner"
OWNER_KEY: Final = SigningKey(bytes(32))
KEYS: Final = [SigningKey(bytes([number] * 32)) for number in (1, 2)]
BY_PUBLIC: Final = {each.public: each for each in KEYS}
PERSON: Final = "person:pat"
"""Who acts with the rights of the node, unless an earlier version has admitted an agent of this name."""

AGENTS: Final = ("ann", "bob", OWNER, "other", PERSON)
NODES: Final = (OWNER, "other")
UNKNOWN: Final = "01J00000000000000000000001"
SQL: Final = named("grants")
LINES: Final = (
    ["conflict.resolve", "job.schedule kind a.*", "lock.break on x:*"],
    ["job.*"],
    ["ask conflict.resolve", "ask job.schedule", "job.abort"],
    ["job.schedule kind a.b"],
    ["*"],
)
OPS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("ResolveConflict", {}),
    ("ScheduleJob", {"jobs": [{"kind": "a.b", "manifest": {}}]}),
    ("AbortJob", {"jobs": [{"job_id": "j", "kind": "a.b"}]}),
    ("BreakLock", {"key": "x:1"}),
    ("ScheduleJob", {"jobs": [{"kind": "a.b", "manifest": {}}, {"kind": "c", "manifest": {}}]}),
)

ENDLESS: Final = Terms(tuple(capabilities_of(LINES[0])), 0, delegations=3)
BEGIN: Final = (
    *(("admit", "ann", KEYS[0]), ("admit", "bob", KEYS[1])),
    *(("issue", "ann", ENDLESS), ("delegate", "bob", None, 0)),
    ("issue", "ann", ENDLESS._replace(until_ms=4)),
)
"""With these a history begins, so that the drawn steps concern something."""

agents = st.sampled_from(AGENTS)
terms = st.builds(
    Terms,
    st.sampled_from(LINES).map(lambda lines: tuple(capabilities_of(lines))),
    st.sampled_from((0, 0, 0, 2)),
    st.none() | st.integers(3, 9),
    budget=st.none(),
    delegations=st.integers(0, 3),
)
"""Of these the times count from now."""

steps = st.one_of(
    st.tuples(st.just("admit"), agents, st.sampled_from((None, *KEYS))),
    st.tuples(st.just("issue"), agents, terms),
    st.tuples(st.just("delegate"), agents, terms, st.integers(0, 9)),
    st.tuples(st.just("delegate"), agents, st.none(), st.integers(0, 9)),
    st.tuples(st.just("revoke"), st.integers(0, 9)),
    st.tuples(st.just("set_strict"), st.booleans()),
    st.tuples(st.just("wait"), st.integers(1, 3)),
    st.tuples(st.just("forge"), agents),
    st.tuples(st.just("prune")),
)


class JudgedGrants:
    """A log and a database that are written together, as the services do it."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.now_ms = 1_000
        self._database = database
        self._log: list[LogEntry] = []
        self._ids = UlidSource(lambda: self.now_ms, lambda bits: 7)
        self.history = GrantHistory(self._signer, MESH[0], OWNER)
        self.grants: list[Grant] = []
        self._ops = cycle(OPS)
        self._verdicts: dict[str, bool] = {}
        for table in ("admitted_agents", "grants"):
            database.execute(f"DELETE FROM {table}")

    @staticmethod
    def _signer(entry: LogEntry) -> str | None:
        return OWNER_KEY.public if entry.node_id == OWNER else None

    def _append(self, kind: str, payload: str, **more: Any) -> LogEntry:
        values: dict[str, Any] = dict.fromkeys(LogEntry._fields)
        hlc = str(Hlc(self.now_ms, len(self._log) % 10_000, "n"))
        values |= {"node_id": OWNER, "op_id": self._ids(), "accepted": 1}
        values |= {"id": len(self._log) + 1, "kind": kind, "payload": payload, "hlc": hlc, **more}
        self._log.append(LogEntry(**values))
        return self._log[-1]

    def _run(self, sql: str, *values: Any) -> bool:
        """Return whether a statement was not refused."""
        try:
            self._database.execute(sql.replace(NOW_MS, str(self.now_ms)), values)
        except sqlite3.IntegrityError:
            return False
        return True

    def _write(self, kind: str, payload: str, *statements: tuple[Any, ...], op_id: str | None = None) -> bool:
        """Write an op with its guards and effects; one that was refused is in the log as such."""
        is_accepted = all(self._run(SQL[name], *MESH, *values) for name, *values in statements)
        own = {} if op_id is None else {"op_id": op_id}
        entry = self._append(kind, payload, accepted=int(is_accepted), **own)
        assert self.history.hear(entry) == is_accepted
        return is_accepted

    # --- the steps -------------------------------------------------------------------------------

    def admit(self, agent: str, key: SigningKey | None) -> None:
        public = None if key is None else key.public
        self._write(ADMIT, AdmittedAgent(agent, public).payload, ("admit", agent, public, "op"))

    def issue(self, agent: str, lasting: Terms) -> None:
        admitted = self.history.admission(agent)
        key = None if admitted is None else admitted.public_key
        grant = Grant(self._ids(), OWNER_KEY.public, agent, key, None, self._from_now(lasting))
        self._record(GRANT, grant, grant.sign(OWNER_KEY, MESH[0]), ("refuse_unless_admitted", agent, key))

    def delegate(self, agent: str, lasting: Terms | None, place: int) -> None:
        """Pass a grant on, with these terms or as much of it as possible."""
        admitted = self.history.admission(agent)
        parent = self.grants[place % len(self.grants)]
        if admitted is None or parent.agent_key is None:
            return
        rest = parent.terms._replace(delegations=max(0, parent.terms.delegations - 1))
        terms = rest if lasting is None else self._from_now(lasting)
        key = BY_PUBLIC[parent.agent_key]
        grant = Grant(self._ids(), key.public, agent, admitted.public_key, parent.grant_id, terms)
        signed = grant.sign(key, MESH[0])
        record = self.history.find(parent.grant_id)
        if delegation_fault(parent, grant) is None and record is not None and not record.is_revoked:
            admitted_still = [
                ("refuse_unless_admitted", each.agent, each.agent_key) for each in (parent, grant)
            ]
            is_delegable = ("refuse_unless_delegable", parent.grant_id, MAX_DELEGATIONS)
            self._record(DELEGATE, grant, signed, *admitted_still, is_delegable)
        else:  # no service writes it, and it does not count
            assert not self.history.hear(self._append(DELEGATE, signed.payload, op_id=grant.grant_id))

    def _from_now(self, lasting: Terms) -> Terms:
        until_ms = None if lasting.until_ms is None else self.now_ms + lasting.until_ms
        return lasting._replace(from_ms=self.now_ms + lasting.from_ms, until_ms=until_ms)

    def _record(self, kind: str, grant: Grant, signed: SignedGrant, *guards: tuple[Any, ...]) -> None:
        row = (grant.grant_id, grant.agent, grant.parent_id, grant.terms.from_ms, grant.terms.until_ms)
        if self._write(kind, signed.payload, *guards, ("grant", *row), op_id=grant.grant_id):
            self.grants.append(grant)

    def revoke(self, place: int) -> None:
        grant_id = self.grants[place % len(self.grants)].grant_id
        payload = canonical({"grant": grant_id})
        self._write(REVOKE, payload, ("refuse_unless_granted", grant_id), ("revoke", grant_id))

    def set_strict(self, strict: bool) -> None:
        statement = ("admit", "*", None, "op") if strict else ("set_trusting",)
        self._write(STRICT, canonical({"strict": strict}), statement)

    def wait(self, delay_ms: int) -> None:
        self.now_ms += delay_ms

    def forge(self, agent: str) -> None:
        """Write into the log what only the owner decides, without the owner's signature."""
        grant = Grant(self._ids(), KEYS[0].public, agent, None, None, Terms(capabilities_of(["*"]), 0))
        for kind, payload in (
            (ADMIT, AdmittedAgent(agent, None).payload),
            (GRANT, grant.sign(KEYS[0], MESH[0]).payload),
            (STRICT, canonical({"strict": not self.history.is_strict()})),
            *((REVOKE, canonical({"grant": each.grant_id})) for each in self.grants),
        ):
            entry = self._append(kind, payload, node_id="other", op_id=grant.grant_id)
            assert not self.history.hear(entry)

    def prune(self) -> None:
        self._run(SQL["prune"], *MESH, 100, 0)

    # --- the judges ------------------------------------------------------------------------------

    def act(self) -> None:
        """Let each agent act through each node, without a grant and by each."""
        for agent in AGENTS:
            for node in NODES:
                self._judge(agent, node, None)
            for grant_id in (UNKNOWN, *(each.grant_id for each in self.grants)):
                self._judge(agent, NODES[len(self._log) % 2], grant_id)

    def _judge(self, agent: str, node: str, grant_id: str | None) -> None:
        kind, content = next(self._ops)
        payload = canonical(content)
        acts = acts_of_op(kind, payload)
        if grant_id is None:
            by_model = not self.history.needs_grant(agent, node + COMMANDS)
        else:
            allowing = self.history.grants_for(agent, acts, self.now_ms)
            by_model = grant_id in {each.grant_id for each in allowing}
        guard = grant_guard(MESH, agent, node, grant_id)
        by_guard = self._run(guard.sql, *guard.params)
        if grant_id is not None:  # the database only decides whether it is in force
            found = [
                each.terms.find(act) for each in self.grants if each.grant_id == grant_id for act in acts
            ]
            by_guard = by_guard and all(each is not None and not each.asks for each in found)
        assert by_guard == by_model, (agent, node, grant_id, acts)
        named_agent = None if agent == node else agent
        entry = self._append(kind, payload, node_id=node + COMMANDS, agent=named_agent, grant=grant_id)
        self._verdicts[entry.op_id] = by_model

    def audit(self) -> None:
        """Compare what the audit finds in the log with the verdicts at the time."""
        history = GrantHistory(self._signer, MESH[0], OWNER)
        for entry in self._log:
            if entry.op_id not in self._verdicts:
                history.hear(entry)
        audit = GrantAudit(history, ApprovalHistory(history, self._signer))
        for entry in self._log:
            if entry.op_id in self._verdicts:
                audit.check(entry)
        found = {each.op_id for each in audit.findings}
        assert found == {op_id for op_id, is_allowed in self._verdicts.items() if not is_allowed}


@pytest.fixture(scope="module")
def database() -> Iterator[sqlite3.Connection]:
    """A database with an owner."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        for statement in ddl():
            database.execute(statement)
        row = (*MESH, OWNER, OWNER_KEY.public, "op")
        database.execute("INSERT INTO mesh_owner VALUES (?, ?, ?, ?, ?)", row)
        yield database


@given(st.lists(steps, min_size=4, max_size=10))
@example([("admit", "ann", KEYS[1]), ("delegate", "bob", None, 0)])
@example([("set_strict", True), ("admit", PERSON, None), ("issue", PERSON, ENDLESS)])
@settings(many, max_examples=2_000 if SOAK else 30)
def test_the_model_the_database_and_the_audit_agree_on_every_act(
    database: sqlite3.Connection, steps: list[tuple[Any, ...]]
) -> None:
    judged = JudgedGrants(database)
    for name, *values in (*BEGIN, *steps):
        getattr(judged, name)(*values)
        judged.act()
    judged.audit()
