"""The spool: scripts on disk, in order, bounded, and the same when they come back."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.running.examples import exactly, many, values
from vox_mesh import Script, Shape, Statement
from vox_mesh.errors import MeshError, SpoolFull
from vox_mesh.store import Item, new_key
from vox_mesh.store.spool.spool import Spool, decode, encode, status_of

NOTE = Shape(name="test.spool.note", statements=("SELECT 1",))


def note(number: int, size: int = 0) -> Script:
    """A script to keep."""
    return Script(Statement("INSERT INTO t VALUES (?, ?)", (number, b"x" * size)), appendable=True)


def numbers(spool: Spool, count: int = 1_000) -> list[object]:
    """The numbers of the scripts that are kept."""
    return [script.statements[0].params[0] for _, script in spool.first(count, 2**20)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the spool lies: a name that means something in a URL."""
    return tmp_path / "spool #1 50%?.db"


@many
@given(
    st.lists(
        st.tuples(st.text(max_size=10), st.lists(values, max_size=5), st.none() | st.text(max_size=5)),
        min_size=1,
        max_size=4,
    )
)
def test_a_script_comes_back_as_it_was(parts: list[tuple[str, list[object], str | None]]) -> None:
    statements = [Statement(sql, params, refusal=refusal) for sql, params, refusal in parts]  # type: ignore[arg-type]
    script = Script(*statements, appendable=True)
    back = decode(encode(script))
    assert back.key == script.key
    assert back.appendable
    assert len(back.statements) == len(statements)
    for mine, other in zip(back.statements, statements, strict=True):
        assert (mine.sql, mine.refusal) == (other.sql, other.refusal)
        assert [exactly(value) for value in mine.params] == [exactly(value) for value in other.params]


@many
@given(
    st.dictionaries(
        st.text(max_size=10),
        st.none()
        | st.integers(-(2**63), 2**63 - 1)
        | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
        max_size=5,
    )
)
def test_a_script_of_a_shape_comes_back_as_it_was(item: Item) -> None:
    script = Script.of(NOTE, item, appendable=True)
    back = decode(encode(script))
    assert (back.key, back.shape, back.item, back.appendable) == (script.key, NOTE, item, True)


def test_a_script_of_an_unknown_shape_is_not_dropped_but_named() -> None:
    line = encode(Script.of(NOTE, {}, appendable=True)).replace(b"test.spool.note", b"test.spool.gone")
    with pytest.raises(MeshError, match=r"test\.spool\.gone"):
        decode(line)


def test_scripts_come_in_the_order_they_were_kept_also_after_reopening(path: Path) -> None:
    spool = Spool(path, 2**20)
    spool.keep([note(1), note(2)])
    spool.keep([note(3)])
    spool.close()
    spool = Spool(path, 2**20)
    spool.keep([note(4)])
    assert numbers(spool) == [1, 2, 3, 4]
    assert numbers(spool, 2) == [1, 2]
    spool.close()


def test_what_the_database_has_is_removed_and_what_it_refused_is_set_aside(path: Path) -> None:
    spool = Spool(path, 2**20)
    spool.keep([note(number) for number in range(1, 6)])
    first = spool.first(3, 2**20)
    spool.finish(first[-1][0], [(first[1][0], "constraint_failed")])
    status = spool.status()
    assert (status.depth, status.refused) == (2, 1)
    assert numbers(spool) == [4, 5]
    spool.keep([note(6)])
    assert numbers(spool) == [4, 5, 6]
    spool.close()


def test_numbers_are_never_given_twice(path: Path) -> None:
    spool = Spool(path, 2**20)
    spool.keep([note(1)])
    ((seq, _),) = spool.first(1, 2**20)
    spool.finish(seq, [])
    spool.keep([note(2)])
    assert spool.first(1, 2**20)[0][0] > seq
    spool.close()


def test_a_full_spool_takes_all_or_none_and_says_so(path: Path) -> None:
    spool = Spool(path, 4_096)
    spool.keep([note(1, 1_000)])
    with pytest.raises(SpoolFull, match="4096") as full:
        spool.keep([note(2), note(3, 3_000)])
    assert "VOX_SPOOL_MAX_BYTES" in full.value.hint
    assert numbers(spool) == [1]
    spool.finish(spool.first(1, 2**20)[0][0], [])
    spool.keep([note(4, 2_000)])
    assert numbers(spool) == [4]
    spool.close()


def test_the_bound_holds_after_reopening(path: Path) -> None:
    spool = Spool(path, 4_096)
    spool.keep([note(1, 2_500)])
    spool.close()
    spool = Spool(path, 4_096)
    with pytest.raises(SpoolFull):
        spool.keep([note(2, 1_000)])
    spool.close()


def test_anyone_may_ask_how_it_stands_and_only_the_owner_may_read_it(path: Path) -> None:
    spool = Spool(path, 2**20)
    assert status_of(path).oldest_ms is None
    spool.keep([note(1), note(2)])
    status = status_of(path)
    assert status == spool.status()
    assert status.depth == 2
    assert status.bytes == sum(len(encode(note(number))) for number in (1, 2))
    assert status.oldest_ms is not None
    assert status.oldest_ms > 1_600_000_000_000
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    spool.close()


def test_keys_are_kept() -> None:
    key = new_key()
    assert decode(encode(Script(Statement("SELECT 1"), key=key, appendable=True))).key == key


def test_a_full_disk_leaves_the_spool_usable(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool.db", 2**25)
    spool.keep([note(1)])
    pages = spool._connection.execute("PRAGMA page_count").fetchone()[0]
    spool._connection.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(SpoolFull):
        spool.keep([note(2, 100_000)])
    spool._connection.execute("PRAGMA max_page_count = 1000000")
    spool.keep([note(3)])
    assert spool.status().depth == 2
    spool.close()
