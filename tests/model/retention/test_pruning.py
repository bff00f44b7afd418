"""Which rows may go: never one that something refers to which stays, and all others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vox_mesh.model.retention.policies import Policy, RetentionPolicies
from vox_mesh.model.retention.pruning import Bounds, PrunableRow, removable
from vox_mesh.model.retention.subjects import DAY_MS, Subject


def a_row(number: int, *referrers: int, needed: bool = False, kind: str = "k", ended: int = 1) -> PrunableRow:
    """A row by its number."""
    return PrunableRow(number, str(number), kind, 0, ended, needed, tuple(map(str, referrers)))


@st.composite
def _rows(draw: st.DrawFn) -> tuple[list[PrunableRow], set[str]]:
    count = draw(st.integers(0, 12))
    numbers = st.integers(0, count + 3)  # some referrers are not among the rows
    rows = [
        a_row(each, *draw(st.sets(numbers, max_size=3)), needed=draw(st.integers(0, 5)) == 0)
        for each in range(count)
    ]
    return rows, set(map(str, draw(st.sets(st.integers(count, count + 3)))))


@given(_rows())
def test_nothing_goes_that_something_refers_to_which_stays(drawn: tuple[list[PrunableRow], set[str]]) -> None:
    rows, gone = drawn
    freed = removable(rows, gone)
    removed = set(gone)
    for row in freed:
        assert not row.is_needed
        assert removed.issuperset(row.referrers)  # they went before it
        removed.add(row.key)
    for row in rows:
        if row.key not in removed:
            assert row.is_needed or not removed.issuperset(row.referrers)
    assert len({row.key for row in freed}) == len(freed)


def test_rows_that_refer_to_each_other_stay() -> None:
    assert removable([a_row(1, 2), a_row(2, 1), a_row(3)]) == [a_row(3)]


def test_a_row_is_due_by_age_or_by_number() -> None:
    given = [Policy(Subject.JOBS, "k", 2 * DAY_MS, None), Policy(Subject.JOBS, "few", None, 10)]
    bounds = Bounds(Subject.JOBS, RetentionPolicies(given), 100 * DAY_MS, {"few": 5})
    old, young = 98 * DAY_MS, 98 * DAY_MS + 1
    assert [bounds.is_due(a_row(1, ended=each)) for each in (old, young)] == [True, False]
    assert [bounds.is_due(a_row(each, kind="few")) for each in (5, 6)] == [True, False]
    assert bounds.is_due(a_row(1, kind="other", ended=70 * DAY_MS))
    assert not bounds.is_due(a_row(1)._replace(ended_ms=None))
    assert (bounds.cutoff_ms, bounds.last_position) == (old, 5)
    assert bounds.is_beyond(a_row(6)._replace(born_ms=young))
    assert not bounds.is_beyond(a_row(5)._replace(born_ms=young))
