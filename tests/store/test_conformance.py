"""What every home promises about scripts: whole, once, in order, and each for itself."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import pytest

from tests.support.running.examples import column
from tests.support.running.programs import program
from tests.support.store.tables import make_table
from tools.homes import FILE, MEMORY, MESH, HomeCase
from tools.sqld import Server
from vox_mesh import (
    Answer,
    Outcome,
    Role,
    Script,
    Settings,
    Statement,
    Store,
    guard,
    load_settings,
    open_store,
)
from vox_mesh.errors import BadStatement, ConstraintFailed, Refused, StoreClosed
from vox_mesh.model.base.backends import Backend, Driver
from vox_mesh.store import Value, new_key
from vox_mesh.store.schema.schema import VERSION


def insert(table: str, number: int | None, a: Value = None, *, key: str | None = None) -> Script:
    """A script that adds one row and answers with it."""
    return Script(
        Statement(f"INSERT INTO {table} (id, a) VALUES (?, ?)", (number, a)),
        answer=Answer(f"SELECT id, a FROM {table} WHERE id = ?", (number,), columns=("id", "a")),
        key=key,
    )


def insert_twice(table: str, number: int, *, key: str | None = None) -> Script:
    """A script whose second statement must fail."""
    sql = f"INSERT INTO {table} (id, a) VALUES (?, ?)"
    return Script(Statement(sql, (number, "first")), Statement(sql, (number, "second")), key=key)


# --- whole or not at all --------------------------------------------------------------------------


async def test_statements_take_effect_in_their_order(store: Store) -> None:
    table = await make_table(store)
    script = Script(
        Statement(f"INSERT INTO {table} (id, a) VALUES (1, 'a')"),
        Statement(f"UPDATE {table} SET a = a || 'b'"),
        Statement(f"UPDATE {table} SET a = a || 'c'"),
        answer=Answer(f"SELECT a FROM {table}", columns=("a",)),
    )
    assert (await store.write(script)).rows.value == "abc"
    assert await column(store, table) == ["abc"]


async def test_a_failing_script_leaves_nothing_behind(store: Store) -> None:
    table = await make_table(store)
    with pytest.raises(ConstraintFailed) as failure:
        await store.write(insert_twice(table, 1))
    assert failure.value.statement == 1
    assert await column(store, table) == []


async def test_a_bad_statement_is_distinguished_from_a_constraint(store: Store) -> None:
    table = await make_table(store)
    script = Script(
        Statement(f"INSERT INTO {table} (id) VALUES (1)"), Statement("INSERT INTO no_such_table VALUES (1)")
    )
    with pytest.raises(BadStatement, match="no_such_table") as failure:
        await store.write(script)
    assert failure.value.statement == 1
    assert await column(store, table, "id") == []


async def test_an_answer_that_fails_undoes_the_statements(store: Store) -> None:
    table = await make_table(store)
    script = Script(
        Statement(f"INSERT INTO {table} (id) VALUES (1)"),
        answer=Answer("SELECT x FROM no_such_table", columns=("x",)),
    )
    with pytest.raises(BadStatement) as failure:
        await store.write(script)
    assert failure.value.statement == 1
    assert await column(store, table, "id") == []


async def test_a_bad_query_raises_bad_statement(store: Store) -> None:
    with pytest.raises(BadStatement, match="no_such_table"):
        await store.read("SELECT * FROM no_such_table")
    with pytest.raises(BadStatement):
        await store.read("SELEKT 1")


async def test_a_guard_that_holds_lets_the_script_go_on(store: Store) -> None:
    table = await make_table(store)
    await store.write(insert(table, 1, "token"))
    holds = guard(f"EXISTS (SELECT 1 FROM {table} WHERE a = ?)", ("token",), refusal="stale_fence")
    await store.write(Script(holds, Statement(f"INSERT INTO {table} (id) VALUES (2)")))
    assert await column(store, table, "id") == [1, 2]


async def test_a_guard_that_fails_refuses_the_whole_script_with_its_reason(store: Store) -> None:
    table = await make_table(store)
    script = Script(
        Statement(f"INSERT INTO {table} (id) VALUES (1)"),
        guard(f"EXISTS (SELECT 1 FROM {table} WHERE a = ?)", ("token",), refusal="stale_fence"),
        guard("1 = 0", refusal="never_reached"),
    )
    with pytest.raises(Refused) as refusal:
        await store.write(script)
    assert (refusal.value.reason, refusal.value.statement) == ("stale_fence", 1)
    assert await column(store, table, "id") == []


# --- answers --------------------------------------------------------------------------------------


async def test_an_answer_may_have_several_rows_and_twelve_columns(store: Store) -> None:
    table = await make_table(store)
    names = tuple(f"n{i}" for i in range(12))
    query = f"SELECT id, {', '.join(str(i) for i in range(1, 12))} FROM {table} WHERE id > ? ORDER BY id"
    script = Script(
        Statement(f"INSERT INTO {table} (id) VALUES (1), (2), (3), (4)"), answer=Answer(query, (1,), names)
    )
    rows = (await store.write(script)).rows
    assert rows.columns == names
    assert [tuple(row) for row in rows] == [(i, *range(1, 12)) for i in (2, 3, 4)]


async def test_changes_tells_what_the_last_statement_changed(store: Store) -> None:
    table = await make_table(store)
    await store.write(Script(Statement(f"INSERT INTO {table} (id) VALUES (1), (2), (3)")))

    def update(above: int) -> Script:
        return Script(
            Statement(f"UPDATE {table} SET a = 'x' WHERE id > ?", (above,)),
            answer=Answer("SELECT changes()", columns=("changed",)),
        )

    assert (await store.write(update(1))).rows[0]["changed"] == 2
    assert (await store.write(update(9))).rows[0]["changed"] == 0


async def test_a_script_without_rows_in_its_answer_answers_with_none(store: Store) -> None:
    table = await make_table(store)
    script = Script(
        Statement(f"DELETE FROM {table}"), answer=Answer(f"SELECT id FROM {table}", columns=("id",))
    )
    rows = (await store.write(script)).rows
    assert len(rows) == 0
    assert rows.value is None


async def test_rows_answer_by_name_and_by_index(store: Store) -> None:
    rows = await store.read("SELECT 1 AS first, 'x' AS second UNION ALL SELECT 2, 'y' ORDER BY 1")
    row = rows[1]
    assert rows.columns == ("first", "second")
    assert (row["first"], row["second"], row[0], row[-1], tuple(row)) == (2, "y", 2, "y", (2, "y"))
    assert row.as_dict() == {"first": 2, "second": "y"}
    assert rows.value == 1
    with pytest.raises(KeyError, match="third"):
        row["third"]


# --- once -----------------------------------------------------------------------------------------


async def test_sent_twice_it_takes_effect_once_and_answers_the_same(store: Store) -> None:
    table = await make_table(store)
    script = insert(table, 1, "x")
    first = await store.write(script)
    await store.write(Script(Statement(f"UPDATE {table} SET a = 'changed since'")))
    again = await store.write(insert(table, 1, "x", key=script.key))
    assert (first.repeated, again.repeated) == (False, True)
    assert again.rows == first.rows
    assert await column(store, table) == ["changed since"]


async def test_the_same_key_twice_in_one_request_takes_effect_once(store: Store) -> None:
    table = await make_table(store)
    script = insert(table, None, "x")
    verdicts = await store.write_all([script, insert(table, 7), script])
    assert [isinstance(v, Outcome) and v.repeated for v in verdicts] == [False, False, True]
    assert await column(store, table, "id") == [1, 7]


async def test_the_same_key_from_callers_at_once_takes_effect_once(store: Store) -> None:
    table = await make_table(store)
    script = Script(
        Statement(f"INSERT INTO {table} (a) VALUES ('x')"),
        answer=Answer(f"SELECT count(*) FROM {table}", columns=("n",)),
    )
    outcomes = await asyncio.gather(*(store.write(script) for _ in range(5)))
    assert sorted(outcome.repeated for outcome in outcomes) == [False, True, True, True, True]
    assert {outcome.rows.value for outcome in outcomes} == {1}


WRITE_AND_DIE = """
import asyncio, os, signal, sys
from vox_mesh import Answer, Script, Statement, load_settings, open_store
table, key = sys.argv[1:]
async def main():
    store = await open_store(load_settings())
    answer = Answer(f"SELECT id, a FROM {table} WHERE id = ?", (1,), columns=("id", "a"))
    added = Statement(f"INSERT INTO {table} (id, a) VALUES (?, ?)", (1, "x"))
    await store.write(Script(added, answer=answer, key=key))
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""


@pytest.mark.parametrize("case", [FILE, MESH], ids=str)
async def test_a_key_is_known_after_its_process_was_killed(
    case: HomeCase, tmp_path: Path, shared_server: Server
) -> None:
    settings = case.settings(tmp_path, shared_server if case.needs_server else None)
    async with await open_store(settings) as store:
        table = await make_table(store)
    script = insert(table, 1, "x")
    with program(WRITE_AND_DIE, table, script.key, settings=settings) as (line, killed):
        assert line == "", "it ends without a word"
    assert killed.returncode == -signal.SIGKILL
    async with await open_store(settings) as store:
        again = await store.write(script)
        assert again.repeated
        assert tuple(again.rows[0]) == (1, "x")
        assert await column(store, table) == ["x"]


async def test_a_key_is_known_after_a_clean_stop(settings: Settings) -> None:
    if settings.backend is Backend.MEMORY:
        return  # there, everything ends with the store
    async with await open_store(settings) as store:
        table = await make_table(store)
        script = insert(table, 1, "x")
        await store.write(script)
    async with await open_store(settings) as store:
        assert (await store.write(script)).repeated
        assert await column(store, table) == ["x"]


async def test_a_failed_script_sent_again_fails_the_same_way(store: Store) -> None:
    table = await make_table(store)
    script = insert_twice(table, 1)
    refused = Script(guard(f"EXISTS (SELECT 1 FROM {table})", refusal="stale_fence"))
    for _ in range(2):
        with pytest.raises(ConstraintFailed) as failure:
            await store.write(script)
        assert failure.value.statement == 1
        with pytest.raises(Refused) as refusal:
            await store.write(refused)
        assert refusal.value.reason == "stale_fence"
        # The reasons have gone meanwhile; the verdicts stand.
        await store.write(Script(Statement(f"INSERT INTO {table} (id) VALUES (NULL)")))


async def test_scopes_and_repositories_do_not_share_keys(settings: Settings) -> None:
    key = new_key()
    async with await open_store(settings) as store:
        table = await make_table(store)
        await store.write(insert(table, 1, key=key))
        if settings.backend is Backend.MEMORY:
            return
        for other in ({"scope_id": new_key()}, {"repository_id": "another"}):
            async with await open_store(settings.model_copy(update=other)) as stranger:
                outcome = await stranger.write(insert(table, None, "stranger", key=key))
                assert not outcome.repeated
        assert await column(store, table) == [None, "stranger", "stranger"]


# --- each for itself ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql", ["INSERT INTO {t} (id) VALUES (9); SELECT 1", "", "-- nothing", "INSERT INTO"]
)
async def test_a_statement_that_can_not_be_read_fails_its_own_script_only(store: Store, sql: str) -> None:
    table = await make_table(store)
    verdicts = await store.write_all(
        [insert(table, 1), Script(Statement(sql.format(t=table))), insert(table, 2)]
    )
    if "INSERT" in sql:  # about a statement that says nothing the homes may differ
        assert isinstance(verdicts[1], BadStatement)
    assert [isinstance(verdicts[place], Outcome) for place in (0, 2)] == [True, True]
    rows = await store.read(f"SELECT id FROM {table} WHERE id < 9 ORDER BY id")
    assert [row["id"] for row in rows] == [1, 2]


async def test_a_fault_that_speaks_of_authors_is_not_taken_for_a_bad_token(store: Store) -> None:
    with pytest.raises(BadStatement):
        await store.read("SELECT * FROM readonly_authors_blocked")


async def test_no_scripts_have_no_outcome(store: Store) -> None:
    assert await store.write_all([]) == []


async def test_a_failing_script_leaves_its_neighbours_alone(store: Store) -> None:
    table = await make_table(store)
    verdicts = await store.write_all(
        [
            insert(table, 1, "a"),
            insert_twice(table, 2),
            Script(guard("1 = 0", refusal="no")),
            Script(Statement("SELEKT 1")),
            insert(table, 5, "e"),
        ]
    )
    assert [type(verdict) for verdict in verdicts] == [
        Outcome,
        ConstraintFailed,
        Refused,
        BadStatement,
        Outcome,
    ]
    assert await column(store, table, "id") == [1, 5]


async def test_scripts_of_one_request_run_in_the_order_given(store: Store) -> None:
    table = await make_table(store)
    await store.write(insert(table, 0, ""))

    def append(letter: str, *, fails: bool) -> Script:
        statements = [Statement(f"UPDATE {table} SET a = a || ? WHERE id = 0", (letter,))]
        if fails:
            statements.append(guard("1 = 0", refusal="no"))
        return Script(*statements, answer=Answer(f"SELECT a FROM {table} WHERE id = 0", columns=("a",)))

    verdicts = await store.write_all([append(letter, fails=letter in "be") for letter in "abcdef"])
    seen = [verdict.rows.value if isinstance(verdict, Outcome) else None for verdict in verdicts]
    assert seen == ["a", None, "ac", "acd", None, "acdf"]


async def test_many_callers_at_once_each_get_their_own_verdict(store: Store, seed: int) -> None:
    table = await make_table(store)
    chance = random.Random(seed)
    numbers = [chance.randrange(40) for _ in range(80)]
    verdicts = await asyncio.gather(
        *(store.write(insert(table, number, i)) for i, number in enumerate(numbers)), return_exceptions=True
    )
    kept = {}
    for i, (number, verdict) in enumerate(zip(numbers, verdicts, strict=True)):
        if isinstance(verdict, Outcome):
            assert tuple(verdict.rows[0]) == (number, i), f"seed {seed}"
            assert number not in kept, f"seed {seed}"
            kept[number] = i
        else:
            assert isinstance(verdict, ConstraintFailed), f"seed {seed}: {verdict!r}"
    assert {row[0]: row[1] for row in await store.read(f"SELECT id, a FROM {table}")} == kept, f"seed {seed}"
    assert set(kept) == set(numbers), f"seed {seed}"


async def test_cancelled_callers_leave_no_hole_and_no_harm(store: Store) -> None:
    table = await make_table(store)
    tasks = [asyncio.create_task(store.write(insert(table, number))) for number in range(1, 31)]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    kept = set(await column(store, table, "id"))
    for i, end in enumerate(ends):
        if isinstance(end, asyncio.CancelledError):
            assert i % 3 == 0
        else:
            assert isinstance(end, Outcome)
            assert i + 1 in kept
    await store.write(insert(table, 100))


# --- reading, and the store itself ----------------------------------------------------------------


async def test_a_read_sees_what_was_committed(store: Store) -> None:
    table = await make_table(store)
    for number in range(1, 6):
        await store.write(insert(table, number))
        assert (await store.read(f"SELECT count(*) FROM {table}")).value == number


async def test_two_stores_see_each_others_writes(settings: Settings) -> None:
    if settings.backend is Backend.MEMORY:
        pytest.skip("a memory database has one store")
    async with await open_store(settings) as one, await open_store(settings) as other:
        table = await make_table(one)
        script = insert(table, 1, "one")
        await one.write(script)
        await other.write(insert(table, 2, "other"))
        assert await column(other, table) == await column(one, table) == ["one", "other"]
        assert (await other.write(script)).repeated


async def test_status_tells_home_driver_and_schema(store: Store, settings: Settings) -> None:
    status = await store.status()
    drivers = {
        Driver.WS: "hrana over WebSocket",
        Driver.HTTP: "hrana over HTTP (/v3)",
        Driver.LIBSQL_CLIENT: "libsql-client",
    }
    assert status.backend is settings.backend
    assert status.engine is not None
    assert status.engine.driver == drivers.get(settings.db_driver, "sqlite")
    assert "SQLite 3." in status.engine.server
    assert (status.schema_version, status.breaker, status.waiting) == (VERSION, "off", 0)
    assert (status.spool is not None) is (settings.backend is Backend.SERVER)
    if status.spool is not None:
        assert status.spool.depth == 0


async def test_a_closed_store_says_so(settings: Settings) -> None:
    store = await open_store(settings, Role.COMMAND)
    await store.close()
    await store.close()
    with pytest.raises(StoreClosed):
        await store.read("SELECT 1")
    with pytest.raises(StoreClosed):
        await store.write(Script(Statement("SELECT 1")))


async def test_without_settings_the_store_is_in_memory() -> None:
    async with await open_store(load_settings()) as store:
        assert store.backend is MEMORY.home
        assert (await store.read("SELECT 1")).value == 1
