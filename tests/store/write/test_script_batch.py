"""Frames: what stands around the scripts of a request is applied with all of them, or with none."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.support.store.tables import make_table
from vox_mesh import Outcome, Script, Statement, Store, guard
from vox_mesh.errors import Refused
from vox_mesh.store.rows import Value
from vox_mesh.store.script import Op, Shape, Verdict, new_key
from vox_mesh.store.spool.spool import Spool, decode, encode
from vox_mesh.store.write.script_batch import (
    BatchWrapper,
    IsolatedBatch,
    OptimisticBatch,
    Pruning,
    RolledBack,
    ScriptBatch,
    StaleWrapper,
)

WAYS: Final = pytest.mark.parametrize("way", [OptimisticBatch, IsolatedBatch])
REFUSE: Final = Statement("INSERT INTO refusals (reason) VALUES ('refused')")

Way = type[OptimisticBatch] | type[IsolatedBatch]


class Bench:
    """A table, and requests to it that are made by hand."""

    def __init__(self, store: Store, table: str) -> None:
        self.store = store
        self.table = table

    def adding(self, text: str) -> Statement:
        """Adds a row."""
        return Statement(f"INSERT INTO {self.table} (a) VALUES (?) RETURNING a", (text,))

    def frame(self, *preface: Statement, entries: Statement) -> BatchWrapper:
        """A frame whose entries are the same whatever became of the scripts."""
        return BatchWrapper(preface, accepted=entries, verdicts=lambda: entries)

    def request(self, way: Way, frame: BatchWrapper, *scripts: Script) -> ScriptBatch:
        """A request with a frame."""
        return way(self.store.writer_id, scripts, Pruning(), frame)

    async def send(self, request: ScriptBatch) -> tuple[list[Verdict], list[list[Value]]]:
        """Send it; what became of the scripts, and the rows of the entries."""
        result = await self.store._engine.run(request)
        return request.verdicts(result), [list(row) for row in request.entries(result)]

    async def rows(self) -> list[Value]:
        """What the table holds, in the order of arrival."""
        found = await self.store.read(f"SELECT a FROM {self.table} ORDER BY rowid", fresh=True)
        return [row[0] for row in found]

    async def is_known(self, script: Script) -> bool:
        """Whether the script's key was remembered."""
        sql = "SELECT 1 FROM script_results WHERE scope_id = ? AND script_key = ?"
        return bool(await self.store.read(sql, (self.store.writer_id.scope_id, script.key), fresh=True))


@pytest.fixture
async def bench(store: Store) -> Bench:
    """A bench on each home in turn."""
    return Bench(store, await make_table(store))


@WAYS
async def test_preface_scripts_and_entries_are_applied_together(bench: Bench, way: Way) -> None:
    scripts = Script(bench.adding("one")), Script(bench.adding("two"))
    frame = bench.frame(bench.adding("preface"), entries=bench.adding("entry"))
    verdicts, entries = await bench.send(bench.request(way, frame, *scripts))
    assert all(isinstance(verdict, Outcome) for verdict in verdicts)
    assert entries == [["entry"]]
    assert await bench.rows() == ["preface", "one", "two", "entry"]


@WAYS
async def test_a_preface_that_fails_lets_nothing_be_applied(bench: Bench, way: Way) -> None:
    scripts = Script(bench.adding("one")), Script(bench.adding("two"))
    for preface in ((bench.adding("first"), REFUSE), (REFUSE, bench.adding("second"))):
        frame = bench.frame(*preface, entries=bench.adding("entry"))
        with pytest.raises(StaleWrapper):
            await bench.send(bench.request(way, frame, *scripts))
    assert await bench.rows() == []
    assert not any([await bench.is_known(script) for script in scripts])


@WAYS
async def test_entries_that_fail_roll_everything_back(bench: Bench, way: Way) -> None:
    scripts = Script(bench.adding("one")), Script(bench.adding("two"))
    frame = bench.frame(bench.adding("preface"), entries=REFUSE)
    with pytest.raises(StaleWrapper):
        await bench.send(bench.request(way, frame, *scripts))
    assert await bench.rows() == []
    assert not any([await bench.is_known(script) for script in scripts])
    frame = bench.frame(entries=bench.adding("entry"))
    await bench.send(bench.request(way, frame, *scripts))  # and the connection is as good as before
    assert await bench.rows() == ["one", "two", "entry"]


async def test_a_script_that_fails_rolls_back_an_optimistic_request_with_its_frame(bench: Bench) -> None:
    frame = bench.frame(bench.adding("preface"), entries=bench.adding("entry"))
    scripts = Script(bench.adding("one")), Script(guard("0", refusal="closed"))
    with pytest.raises(RolledBack):
        await bench.send(bench.request(OptimisticBatch, frame, *scripts))
    assert await bench.rows() == []


async def test_entries_note_outside_the_savepoints_what_became_of_each_script(bench: Bench) -> None:
    scripts = (
        Script(bench.adding("one")),
        Script(bench.adding("gone"), guard("0", refusal="closed")),
        Script(bench.adding("two")),
    )
    keys = [script.key for script in scripts]
    noting = Statement(
        f"INSERT INTO {bench.table} (a, b) SELECT 'entry', failed_statement FROM script_results "
        "WHERE scope_id = ? AND script_key IN (?, ?, ?) ORDER BY script_key RETURNING b",
        (bench.store.writer_id.scope_id, *keys),
    )
    frame = BatchWrapper((bench.adding("preface"),), accepted=REFUSE, verdicts=lambda: noting)
    verdicts, entries = await bench.send(bench.request(IsolatedBatch, frame, *scripts))
    assert [isinstance(verdict, Refused) for verdict in verdicts] == [False, True, False]
    assert entries == [[None], [1], [None]]
    assert await bench.rows() == ["preface", "one", "two", "entry", "entry", "entry"]


@WAYS
async def test_nothing_but_a_preface_is_a_frame_too(bench: Bench, way: Way) -> None:
    script = Script(bench.adding("one"))
    with pytest.raises(StaleWrapper):
        await bench.send(bench.request(way, BatchWrapper((REFUSE,)), script))
    verdicts, entries = await bench.send(bench.request(way, BatchWrapper((bench.adding("preface"),)), script))
    assert isinstance(verdicts[0], Outcome)
    assert entries == []
    assert await bench.rows() == ["preface", "one"]


async def test_a_key_that_is_twice_in_an_optimistic_request_fails_it_also_with_an_op(bench: Bench) -> None:
    script = Script(bench.adding("one"), op=Op("note", "{}"))
    with pytest.raises(RolledBack):
        await bench.send(bench.request(OptimisticBatch, BatchWrapper(), script, script))
    assert await bench.rows() == []


SHAPE: Final = Shape("test.frames.add", ("INSERT INTO t SELECT value ->> 'a' FROM json_each(?1)",))


@pytest.mark.parametrize(
    "script",
    [
        Script(op=Op("note", "{}"), appendable=True),
        Script(
            op=Op("note", '{"é":"😀 \\u0000"}', (new_key(), new_key()), True, "deferred"), appendable=True
        ),
        Script(Statement("SELECT ?", (b"\x00\xff",), refusal="no"), op=Op("a.b", "[]"), appendable=True),
        Script.of(SHAPE, {"a": "é", "b": None}, op=Op("note", '{"a":1}'), appendable=True, key=new_key()),
        Script(Statement("SELECT 1"), appendable=True),
    ],
    ids=["op", "all of an op", "statements", "shape", "no op"],
)
def test_a_script_with_an_op_comes_back_from_the_spool_as_it_went(script: Script, tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool.db", 2**20)
    spool.keep([script])
    ((_, back),) = spool.first(10, 2**20)
    spool.close()
    assert (back.key, back.op, back.shape, back.item) == (script.key, script.op, script.shape, script.item)
    assert type(back.op) is type(script.op)
    assert [(each.sql, tuple(each.params), each.refusal) for each in back.statements] == [
        (each.sql, tuple(each.params), each.refusal) for each in script.statements
    ]
    assert back.appendable
    assert encode(decode(encode(script))) == encode(script)
