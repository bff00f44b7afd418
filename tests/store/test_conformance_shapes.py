"""What every home promises about shapes: merged scripts end as they would one after another."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.support.running.examples import column, exactly, few
from tests.support.store.tables import make_table
from vox_mesh import Outcome, Script, Shape, Statement, Store
from vox_mesh.errors import BadValue, ConstraintFailed, Refused
from vox_mesh.store import Item, new_key

WITHOUT_NUL = st.characters(exclude_categories=["Cs"], exclude_characters="\0")


def note_shape(table: str, *, by_subject: bool = True) -> Shape:
    """Adds a row (a constraint says once per id) and answers with the row and the table's size."""
    item = "json_extract(value, '$.id')", "json_extract(value, '$.a')", "json_extract(value, '$.key')"
    return Shape(
        name=f"test.{new_key().lower()}",
        statements=(
            f"INSERT INTO {table} (id, a, b) SELECT {', '.join(item)} FROM json_each(?1)",
            "INSERT INTO refusals (reason) SELECT 'no' FROM json_each(?1) "
            "WHERE json_extract(value, '$.a') = 'forbidden'",
        ),
        answer=f"SELECT b, id, a, (SELECT count(*) FROM {table}) FROM {table} "
        "WHERE b IN (SELECT json_extract(value, '$.key') FROM json_each(?1)) ORDER BY id DESC",
        columns=("id", "a", "n"),
        refusals={1: "forbidden"},
        subject=(lambda item: item["id"]) if by_subject else None,
    )


def count_shape(table: str) -> Shape:
    """Adds to a counter, which only works out if no two items with one id are merged."""
    return Shape(
        name=f"test.{new_key().lower()}",
        statements=(
            f"UPDATE {table} SET a = a + 1 WHERE id IN "
            "(SELECT json_extract(value, '$.id') FROM json_each(?1))",
        ),
        answer=f"SELECT json_extract(item.value, '$.key'), t.a FROM json_each(?1) AS item "
        f"JOIN {table} AS t ON t.id = json_extract(item.value, '$.id')",
        columns=("a",),
        subject=lambda item: item["id"],
    )


async def test_merged_scripts_each_get_their_own_rows(store: Store) -> None:
    table = await make_table(store)
    shape = note_shape(table)
    scripts = [Script.of(shape, {"id": number, "a": f"note {number}"}) for number in (5, 3, 9, 1)]
    verdicts = await store.write_all(scripts)
    for script, verdict in zip(scripts, verdicts, strict=True):
        assert isinstance(verdict, Outcome)
        assert verdict.key == script.key
        assert [tuple(row)[:2] for row in verdict.rows] == [(script.item["id"], script.item["a"])]
    assert await column(store, table, "id") == [1, 3, 5, 9]


async def test_callers_at_once_each_get_their_own_rows(store: Store) -> None:
    table = await make_table(store)
    shape = note_shape(table)
    outcomes = await asyncio.gather(
        *(store.write(Script.of(shape, {"id": number, "a": f"note {number}"})) for number in range(50))
    )
    assert [tuple(outcome.rows[0])[:2] for outcome in outcomes] == [(n, f"note {n}") for n in range(50)]


async def test_a_merged_script_sent_again_answers_the_same(store: Store) -> None:
    table = await make_table(store)
    shape = note_shape(table)
    scripts = [Script.of(shape, {"id": number, "a": None}) for number in range(3)]
    first = await store.write_all(scripts)
    again = await store.write_all([Script.of(shape, {"id": 7, "a": None}), *reversed(scripts)])
    answers = {v.key: v.rows for v in first if isinstance(v, Outcome)}
    assert len(answers) == 3
    for verdict in again[1:]:
        assert isinstance(verdict, Outcome)
        assert verdict.repeated
        assert verdict.rows == answers[verdict.key]
    assert await column(store, table, "id") == [0, 1, 2, 7]


async def test_a_run_breaks_where_a_subject_comes_again(store: Store) -> None:
    table = await make_table(store)
    await store.write(Script(Statement(f"INSERT INTO {table} (id, a) VALUES (1, 0), (2, 0)")))
    shape = count_shape(table)
    verdicts = await store.write_all([Script.of(shape, {"id": number}) for number in (1, 2, 1, 1, 2)])
    assert [v.rows.value for v in verdicts if isinstance(v, Outcome)] == [1, 1, 2, 3, 2]
    assert await column(store, table) == [3, 2]


async def test_a_failing_item_only_fails_its_own_script(store: Store) -> None:
    table = await make_table(store)
    shape = note_shape(table, by_subject=False)
    items: list[Item] = [{"id": 1}, {"id": 2}, {"id": 1}, {"id": 3, "a": "forbidden"}, {"id": 4}]
    scripts = [Script.of(shape, item) for item in items]
    verdicts = await store.write_all(scripts)
    assert [type(verdict) for verdict in verdicts] == [Outcome, Outcome, ConstraintFailed, Refused, Outcome]
    assert isinstance(verdicts[3], Refused)
    assert verdicts[3].reason == "forbidden"
    assert await column(store, table, "id") == [1, 2, 4]
    assert [type(verdict) for verdict in await store.write_all(scripts)] == [type(v) for v in verdicts]


async def test_shapes_and_plain_scripts_keep_their_order(store: Store) -> None:
    table = await make_table(store)
    shape = note_shape(table)
    verdicts = await store.write_all(
        [
            Script.of(shape, {"id": 1}),
            Script(Statement(f"INSERT INTO {table} (id) VALUES (2)")),
            Script.of(shape, {"id": 3}),
            Script.of(shape, {"id": 4}),
        ]
    )
    sizes = [v.rows[0]["n"] if isinstance(v, Outcome) and v.rows else None for v in verdicts]
    assert sizes == [1, None, 4, 4]


@few
@given(a=st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.text(WITHOUT_NUL, max_size=20)))
@example(a=2**63 - 1)
@example(a=-(2**63))
@example(a=2**53 + 1)
@example(a='"quoted" \\ \x01 \U0001f600')
async def test_the_values_of_an_item_come_back_exactly(store: Store, a: str | int | None) -> None:
    assume(a != "forbidden")  # which the shape refuses
    table = await make_table(store)
    shape = note_shape(table)
    outcome = await store.write(Script.of(shape, {"id": 1, "a": a}))
    assert exactly(outcome.rows[0]["a"]) == exactly(a)
    assert exactly((await store.read(f"SELECT a FROM {table}")).value) == exactly(a)


@pytest.mark.parametrize("value", [1.5, b"x", "a\0b", "\ud800", 2**63], ids=ascii)
def test_what_json_would_not_give_back_is_refused_in_an_item(value: object) -> None:
    shape = note_shape("t")
    with pytest.raises(BadValue):
        Script.of(shape, {"a": value})  # type: ignore[dict-item]


def test_a_shapes_name_is_given_once() -> None:
    shape = note_shape("t")
    with pytest.raises(BadValue, match="two shapes"):
        Shape(name=shape.name, statements=("SELECT 1",))
