"""Repeatable scripts: nothing is remembered of them, and next to any others they end as they would alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proof.chaos.proxy import Fault, Proxy
from tests.support.running.examples import few
from tests.support.running.lengths import cases_in_soak
from tests.support.store.combining import Combining, adding, combining, outcome
from tests.support.store.tables import make_table
from tools.homes import MESH, MESH_HTTP, HomeCase
from tools.sqld import Server
from vox_mesh import Answer, Outcome, Script, Shape, Statement, Store, open_store
from vox_mesh.errors import BadStatement, BadValue, ConstraintFailed, NoAnswer, Refused
from vox_mesh.store import Op, guard, new_key
from vox_mesh.store.script import Verdict


def put(table: str, number: int, value: str, *, key: str | None = None) -> Script:
    """Makes a row what it is to be, and answers with it: the same however often it runs."""
    sql = (
        f"INSERT INTO {table} (id, a) VALUES (?, ?) ON CONFLICT DO UPDATE SET a = excluded.a RETURNING id, a"
    )
    return Script(answer=Answer(sql, (number, value), ("id", "a")), key=key, repeatable=True)


def put_shape(table: str) -> Shape:
    """The same for many: but a value that is forbidden is refused, and an odd one fails."""
    return Shape(
        f"test.{new_key().lower()}",
        (
            "INSERT INTO refusals (reason) SELECT ?2 || ?3 FROM json_each(?1) "
            "WHERE value ->> 'a' = 'forbidden'",
            f"INSERT INTO {table} (id, a) SELECT value ->> 'id', CASE value ->> 'a' WHEN 'odd' THEN NULL "
            "ELSE value ->> 'a' END FROM json_each(?1) WHERE ?2 || ?3 <> 'x' "
            "ON CONFLICT DO UPDATE SET a = excluded.a",
        ),
        answer=f"UPDATE {table} SET b = coalesce(b, 0) FROM json_each(?1) AS i "
        f"WHERE ?2 || ?3 <> 'x' AND {table}.id = i.value ->> 'id' AND i.value ->> 'a' <> 'silent' "
        f"RETURNING {table}.id, {table}.a",
        columns=("a",),
        refusals={0: "forbidden"},
        subject=lambda item: item["id"],
        repeatable=True,
    )


COLUMNS = "id INTEGER PRIMARY KEY, a NOT NULL, b"


async def remembered(store: Store) -> int:
    """How many scripts of this mesh are remembered."""
    sql = "SELECT count(*) FROM script_results WHERE scope_id = ?"
    return int((await store.read(sql, store.writer_id[:1], fresh=True)).value)


def reported(verdicts: Sequence[Verdict]) -> list[object]:
    """The answer of each script: its rows, or the kind of its failure."""
    return [
        [tuple(row) for row in verdict.rows] if isinstance(verdict, Outcome) else type(verdict)
        for verdict in verdicts
    ]


async def test_nothing_is_remembered_of_a_repeatable_script(store: Store) -> None:
    table = await make_table(store, COLUMNS)
    shape = put_shape(table)
    before = await remembered(store)
    script = put(table, 1, "one")
    for _ in range(2):
        again = await store.write(script)
        assert (again.rows[0].as_dict(), again.repeated) == ({"id": 1, "a": "one"}, False)
    await store.write_all([put(table, n, "x") for n in range(2, 6)])
    await store.write_all([Script.of(shape, {"id": n, "a": "y"}) for n in range(6, 9)])
    assert await remembered(store) == before


async def test_a_repeatable_script_that_was_refused_may_succeed_later_under_the_same_key(
    store: Store,
) -> None:
    table = await make_table(store, COLUMNS)
    count = f"SELECT count(*) FROM {table}"
    script = Script(
        guard(f"({count}) > 0", refusal="empty"), answer=Answer(count, (), ("n",)), repeatable=True
    )
    with pytest.raises(Refused) as refused:
        await store.write(script)
    assert (refused.value.reason, refused.value.statement) == ("empty", 0)
    await store.write(put(table, 1, "x"))
    assert (await store.write(script)).rows.value == 1


async def test_scripts_that_fail_leave_repeatable_neighbours_alone(store: Store) -> None:
    table = await make_table(store, COLUMNS)
    shape = put_shape(table)
    insert = f"INSERT INTO {table} (id, a) VALUES (?, 'once')"
    scripts = [
        put(table, 1, "one"),
        Script(Statement(insert, (1,))),
        Script.of(shape, {"id": 2, "a": "two"}),
        Script.of(shape, {"id": 3, "a": "forbidden"}),
        Script.of(shape, {"id": 4, "a": "odd"}),
        Script.of(shape, {"id": 5, "a": "silent"}),
        Script(Statement(insert, (6,)), answer=Answer("SELECT 6", (), ("n",))),
        Script(guard("0", refusal="never"), repeatable=True),
        put(table, 1, "uno"),
        Script(Statement(f"UPDATE {table} SET a = NULL"), repeatable=True),
    ]
    for turn in range(2):  # the second time, in the way that expects failures
        ends = reported(await store.write_all(scripts if turn == 0 else _again(scripts)))
        assert ends == [
            [(1, "one")],
            ConstraintFailed,
            [("two",)],
            Refused,
            ConstraintFailed,
            [],
            [(6,)] if turn == 0 else ConstraintFailed,
            Refused,
            [(1, "uno")],
            ConstraintFailed,
        ]
    rows = [tuple(row) for row in await store.read(f"SELECT id, a FROM {table} ORDER BY id", fresh=True)]
    assert rows == [(1, "uno"), (2, "two"), (5, "silent"), (6, "once")]


def _again(scripts: Sequence[Script]) -> list[Script]:
    """The same scripts under keys of their own, where they have one that is remembered."""
    return [
        script if script.repeatable else Script(*script.statements, answer=script.answer)
        for script in scripts
    ]


async def test_one_and_the_same_script_may_be_in_a_request_twice(store: Store) -> None:
    table = await make_table(store, COLUMNS)
    shape = put_shape(table)
    one, two = put(table, 1, "one"), Script.of(shape, {"id": 2, "a": "two"})
    once = Script(Statement(f"INSERT INTO {table} (id, a) VALUES (9, 'once')"))
    ends = reported(await store.write_all([one, two, one, two, once]))
    assert ends == [[(1, "one")], [("two",)], [(1, "one")], [("two",)], []]


async def test_a_statement_that_can_not_be_read_fails_its_own_script(store: Store) -> None:
    table = await make_table(store, COLUMNS)
    bad = Script(answer=Answer("SELECT nothing FROM nowhere", (), ("n",)), repeatable=True)
    ends = reported(await store.write_all([put(table, 1, "one"), bad, put(table, 2, "two")]))
    assert ends == [[(1, "one")], BadStatement, [(2, "two")]]


def test_what_is_not_remembered_can_not_wait_or_be_an_op() -> None:
    with pytest.raises(BadValue):
        Script(Statement("SELECT 1"), repeatable=True, appendable=True)
    with pytest.raises(BadValue):
        Script(Statement("SELECT 1"), repeatable=True, op=Op("note", "{}"))
    with pytest.raises(BadValue):
        Script(answer=Answer("SELECT 1", (), ("n",)))
    with pytest.raises(BadValue):
        Shape(f"test.{new_key().lower()}", (), answer="SELECT 1", columns=("n",), repeatable=True)


# --- answers that get lost -------------------------------------------------------------------------------


async def _counter(c: Combining) -> None:
    await c.send(Script(Statement("CREATE TABLE runs (n)"), Statement("INSERT INTO runs VALUES (0)")))


def _counting(number: int) -> Script:
    """Not quite repeatable: it counts how often it was run."""
    return Script(
        Statement("UPDATE runs SET n = n + 1"),
        answer=Answer("SELECT ?, n FROM runs", (number,), ("number", "n")),
        repeatable=True,
    )


@pytest.mark.parametrize("home", ["memory", "file"])
async def test_a_lost_answer_is_given_by_the_second_run(home: str, tmp_path: Path) -> None:
    async with combining(tmp_path / "x.db" if home == "file" else None) as c:
        await _counter(c)
        c.gate.after.extend([NoAnswer("lost"), NoAnswer("lost")])
        end = outcome(await c.send(_counting(7)))
        assert (tuple(end.rows[0]), end.repeated) == ((7, 3), True)


@pytest.mark.parametrize("fails", [False, True])
async def test_beside_a_lost_answer_others_take_effect_once(fails: bool) -> None:
    async with combining() as c:
        await _counter(c)
        first = await c.busy()
        rest = [c.send(script) for script in (adding(1), _counting(7), adding(1 if fails else 2))]
        await c.queued(3)
        c.gate.release_one()
        await first
        c.gate.after.append(NoAnswer("lost"))
        c.gate.release()
        one, counted, two = [(await each)[0] for each in rest]
        assert isinstance(one, Outcome)
        assert isinstance(counted, Outcome)
        assert counted.rows[0]["number"] == 7
        assert isinstance(two, ConstraintFailed if fails else Outcome)
        assert await c.ids() == ([0, 1] if fails else [0, 1, 2])


@pytest.mark.parametrize("case", [MESH, *cases_in_soak(MESH_HTTP)], ids=str)
@pytest.mark.parametrize("fault", [Fault.DROP_ANSWER, Fault.CUT_REQUEST], ids=str)
async def test_a_spoiled_exchange_with_a_server_ends_as_a_whole_one(
    case: HomeCase, fault: Fault, tmp_path: Path, shared_server: Server
) -> None:
    async with Proxy(shared_server.port) as proxy:
        through = case.settings(tmp_path, shared_server, db_url=proxy.url, db_request_timeout="3s")
        async with await open_store(through) as store:
            table = await make_table(store, COLUMNS)
            shape = put_shape(table)
            for fails in (False, True):
                once = Script(Statement(f"INSERT INTO {table} (id, a) VALUES (?, 'once')", (90,)))
                proxy.spoil(fault)
                answered = await asyncio.gather(
                    store.write(put(table, 1, "one"), timeout=60.0),
                    store.write(Script.of(shape, {"id": 2, "a": "two"}), timeout=60.0),
                    store.write(once, timeout=60.0),
                    store.write(Script.of(shape, {"id": 3, "a": "three"}), timeout=60.0),
                    return_exceptions=True,
                )
                ends: list[object] = list(answered)
                assert isinstance(ends.pop(2), ConstraintFailed if fails else Outcome)
                values = [end.rows[0]["a"] for end in ends if isinstance(end, Outcome)]
                assert values == ["one", "two", "three"], ends
            proxy.release()


# --- any mixture -------------------------------------------------------------------------------------------

_VALUES = st.sampled_from(["x", "y", "forbidden", "odd", "silent"])
_STEPS = st.tuples(st.sampled_from(["put", "shape", "once", "refused"]), st.integers(0, 3), _VALUES)


def _scripts(table: str, shape: Shape, steps: Sequence[tuple[str, int, str]]) -> list[Script]:
    made: list[Script] = []
    for what, number, value in steps:
        match what:
            case "put":
                made.append(put(table, number, value))
            case "shape":
                made.append(Script.of(shape, {"id": number, "a": value}))
            case "once":
                made.append(Script(Statement(f"INSERT INTO {table} (id, a) VALUES (?, ?)", (number, value))))
            case _:
                made.append(Script(guard("0", refusal="never"), repeatable=True))
    return made


@settings(few, max_examples=10)
@given(steps=st.lists(_STEPS, max_size=12))
async def test_a_request_of_any_mixture_ends_as_its_scripts_one_after_another_would(
    store: Store, steps: list[tuple[str, int, str]]
) -> None:
    ends: list[object] = []
    for together in (False, True):
        table = await make_table(store, COLUMNS)
        scripts = _scripts(table, put_shape(table), steps)
        if together:
            verdicts = await store.write_all(scripts)
        else:
            verdicts = [verdict for script in scripts for verdict in await store.write_all([script])]
        rows = await store.read(f"SELECT id, a FROM {table} ORDER BY id", fresh=True)
        ends.append((reported(verdicts), [tuple(row) for row in rows]))
    assert ends[0] == ends[1]
