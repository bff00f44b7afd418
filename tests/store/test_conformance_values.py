"""What every home promises about values: they come back exactly as they went in, or are refused."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.running.examples import exactly, few, values
from tests.support.store.tables import make_table
from vox_mesh import Answer, Script, Statement, Store, guard
from vox_mesh.errors import BadValue
from vox_mesh.store import Value

CORNERS: list[Value] = [
    -0.0,
    5e-324,
    -2.2250738585072009e-308,
    1.7976931348623157e308,
    0.1,
    1.0,
    1e16,
    2**63 - 1,
    -(2**63),
    2**53 + 1,
    "",
    "\x00",
    "a\x00b\x00",
    "\U0001f600\U0010ffff\ud7ff\ue000",
    "e\u0301 \u202e \ufeff \x7f \x85",
    "1",
    "1.0",
    b"",
    b"\x00\xff\x80",
    b"text",
    None,
]


@few
@given(sent=st.lists(values, min_size=1, max_size=6))
@example(sent=CORNERS)
async def test_values_come_back_exactly(store: Store, sent: list[Value]) -> None:
    table = await make_table(store, "id INTEGER PRIMARY KEY, v")
    script = Script(
        *(Statement(f"INSERT INTO {table} (v) VALUES (?)", (value,)) for value in sent),
        answer=Answer(f"SELECT v, ? FROM {table} ORDER BY id", (sent[0],), columns=("v", "param")),
    )
    expected = [exactly(value) for value in sent]
    for repeated in (False, True):
        outcome = await store.write(script)
        assert outcome.repeated is repeated
        assert [exactly(row["v"]) for row in outcome.rows] == expected
        assert {exactly(row["param"]) for row in outcome.rows} == {exactly(sent[0])}
    stored = await store.read(f"SELECT v FROM {table} ORDER BY id")
    assert [exactly(row["v"]) for row in stored] == expected
    echoed = await store.read(f"SELECT {', '.join('?' * len(sent))}", sent)
    assert [exactly(value) for value in echoed[0]] == expected


async def test_a_megabyte_comes_back_exactly(store: Store) -> None:
    table = await make_table(store)
    blob = bytes(range(256)) * 4_096
    await store.write(Script(Statement(f"INSERT INTO {table} (a, b) VALUES (?, ?)", (blob, "ü" * 2**19))))
    row = (await store.read(f"SELECT a, b FROM {table}"))[0]
    assert row["a"] == blob
    assert row["b"] == "ü" * 2**19


async def test_a_truth_value_is_the_integer_it_is(store: Store) -> None:
    row = (await store.read("SELECT ?, ?", (True, False)))[0]
    assert [exactly(value) for value in row] == [(int, 1), (int, 0)]


REFUSED: list[Any] = [
    2**63,
    -(2**63) - 1,
    math.inf,
    -math.inf,
    math.nan,
    "\ud800",
    "tail \udfff",
    decimal.Decimal(1),
    datetime.date(2024, 1, 1),
    bytearray(b"x"),
    [1],
    range(3),
]


class Word(str):
    """A foreign text type."""


@pytest.mark.parametrize("value", [*REFUSED, Word("\ud800")], ids=ascii)
def test_what_no_home_could_give_back_is_refused_before_it_is_sent(value: Any) -> None:
    with pytest.raises(BadValue):
        Statement("SELECT ?", (value,))
    with pytest.raises(BadValue):
        Answer("SELECT ?", (value,), columns=("v",))
    with pytest.raises(BadValue):
        guard("?", (value,), refusal="no")


async def test_a_query_with_such_a_value_is_refused_too(store: Store) -> None:
    for value in REFUSED:
        with pytest.raises(BadValue):
            await store.read("SELECT ?", (value,))
