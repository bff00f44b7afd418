"""The use of grants, counted by the database: against a clock that the test sets."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.running.examples import many
from vox_mesh.model.grants.capability import Capability
from vox_mesh.model.grants.limits import Item, ItemKind, LimitedUse
from vox_mesh.oplog.grants.usage import usage_statements
from vox_mesh.store.schema.statements import NOW_MS, ddl

MESH: Final = ("scope", "repository")
FIRST: Final = "01J00000000000000000000001"
SECOND: Final = "01J00000000000000000000002"


class CountedGrants:
    """A database that counts, with a clock of its own."""

    def __init__(self) -> None:
        self.database = sqlite3.connect(":memory:", isolation_level=None)
        for statement in (*ddl(), "CREATE TABLE test_clock (now_ms INTEGER)"):
            self.database.execute(statement)
        self.database.execute("INSERT INTO test_clock VALUES (0)")
        self.ids = map(str, count())

    def set_clock(self, now_ms: int) -> None:
        self.database.execute("UPDATE test_clock SET now_ms = ?", (now_ms,))

    def use(self, *uses: LimitedUse, after: Callable[[], None] = lambda: None) -> str | None:
        """Record uses in a transaction, and what they leave; return why it was refused, or `None`."""
        self.database.execute("BEGIN")
        for statement in usage_statements(MESH, uses):
            sql = statement.sql.replace(NOW_MS, "(SELECT now_ms FROM test_clock)")
            try:
                self.database.execute(sql, tuple(statement.params))
            except sqlite3.IntegrityError:
                self.database.execute("ROLLBACK")
                return statement.refusal
        after()
        self.database.execute("COMMIT")
        return None

    def act(self, line: str, times: int = 1, grant: str = FIRST) -> LimitedUse:
        items = [Item(ItemKind.ACT, next(self.ids)) for _ in range(times)]
        return LimitedUse(grant, 0, Capability.parse(line), items)

    def rows(self) -> int:
        return int(self.database.execute("SELECT count(*) FROM grant_usage").fetchone()[0])


@pytest.fixture
def grants() -> Iterator[CountedGrants]:
    """An empty database."""
    counted = CountedGrants()
    yield counted
    counted.database.close()


steps = st.lists(st.tuples(st.integers(0, 700), st.integers(1, 3)), min_size=1, max_size=30)


@given(st.integers(1, 5), steps)
@many
def test_no_window_holds_more_than_the_rate_and_no_use_is_refused_without_need(
    times: int, steps: Sequence[tuple[int, int]]
) -> None:
    grants, now_ms, done = CountedGrants(), 1_000, list[int]()
    for delay_ms, number in steps:
        now_ms += delay_ms
        grants.set_clock(now_ms)
        is_allowed = len([each for each in done if each > now_ms - 1_000]) + number <= times
        refusal = grants.use(grants.act(f"job.schedule rate {times}/1s", number))
        assert refusal == (None if is_allowed else "rate_exceeded")
        done += [now_ms] * number if is_allowed else []
    for begin_ms in done:
        assert len([each for each in done if begin_ms <= each < begin_ms + 1_000]) <= times
    assert grants.rows() <= 2 * times
    grants.database.close()


def test_a_use_counts_once_against_each_grant_of_its_chain(grants: CountedGrants) -> None:
    grants.set_clock(1_000)
    parent, child = "job.schedule rate 3/1m", "job.schedule kind a rate 2/1m"
    use = grants.act(child)
    above = LimitedUse(SECOND, 4, Capability.parse(parent), use.items)
    for _ in range(5):  # the same item, as when an answer was lost
        assert grants.use(above, use) is None
    assert grants.rows() == 2
    assert grants.use(grants.act(parent, 2, SECOND)._replace(place=4)) is None
    use = grants.act(child)
    above = above._replace(items=use.items)
    assert grants.use(above, use) == "rate_exceeded"  # of the parent: the child has room
    assert grants.use(use) is None


def test_a_clock_that_was_set_back_allows_no_more(grants: CountedGrants) -> None:
    line = "job.schedule rate 2/1s"
    for now_ms, expected in ((5_000, None), (4_500, None), (4_600, "rate_exceeded"), (6_000, None)):
        grants.set_clock(now_ms)
        assert grants.use(grants.act(line)) == expected


def test_what_has_ended_makes_room(grants: CountedGrants) -> None:
    capability = Capability.parse("job.schedule rate 9/1s open 2")
    columns = (
        "scope_id, repository_id, job_id, ulid, kind, state, priority, waits, not_before_ms, max_attempts,"
        " max_interruptions, backoff_ms, created_ms, scheduled_by, seed, last_op, manifest"
    )

    def schedule(*names: str) -> str | None:
        items = [Item(ItemKind.JOB, name) for name in names]

        def insert() -> None:
            for name in names:
                values = (*MESH, name, name, "k", "pending", 1, 0, 0, 1, 1, 0, 0, "n", "s", "o", "{}")
                marks = ", ".join("?" * len(values))
                grants.database.execute(f"INSERT OR IGNORE INTO jobs ({columns}) VALUES ({marks})", values)

        return grants.use(LimitedUse(FIRST, 0, capability, items), after=insert)

    grants.set_clock(1_000)
    assert schedule("a", "b") is None
    assert schedule("a") is None  # it is there
    assert schedule("c") == "too_many_open"
    grants.database.execute("UPDATE jobs SET ended_ms = 1, state = 'succeeded' WHERE job_id = 'a'")
    assert schedule("c", "d") == "too_many_open"
    assert schedule("c") is None
    assert grants.rows() == 3
    grants.set_clock(2_000)
    grants.database.execute("UPDATE jobs SET ended_ms = 1, state = 'succeeded'")
    assert schedule("d", "e") is None
    assert grants.rows() == 2
