"""The mark: what is not marked is left alone, and what is has one owner who knows how it stands."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.running.examples import many
from tests.support.running.programs import program
from vox_mesh.errors import ReplicaOff
from vox_mesh.store.replica.mark import Mark, Record, read_record
from vox_mesh.store.replica.paths import mark_of, replica_path

DRIVER, PRIMARY = "pushed", "http://127.0.0.1:8080"
HOLD = """
import sys
from pathlib import Path
from vox_mesh.store.replica.mark import Mark
mark = Mark.take(Path(sys.argv[1]), "pushed", "http://127.0.0.1:8080")
mark.update(log_id="of the other process", next_frame=7)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the replica lies."""
    return replica_path(tmp_path / "local.db", "1")


@contextmanager
def taken(path: Path, driver: str = DRIVER, primary: str = PRIMARY) -> Iterator[Mark]:
    """The mark, owned for a while."""
    mark = Mark.take(path, driver, primary)
    try:
        yield mark
    finally:
        mark.release()


def test_a_file_that_is_not_marked_is_left_alone(path: Path) -> None:
    path.write_bytes(b"another's data")
    with pytest.raises(ReplicaOff, match="not marked as a replica") as refused:
        Mark.take(path, DRIVER, PRIMARY)
    assert "VOX_DB_PATH" in refused.value.hint
    assert path.read_bytes() == b"another's data"
    assert list(path.parent.iterdir()) == [path]


def test_another_process_is_refused_until_the_first_is_gone(path: Path) -> None:
    with program(HOLD, path) as (line, process):
        assert line == "held"
        with pytest.raises(ReplicaOff, match="in use by another process") as refused:
            Mark.take(path, DRIVER, PRIMARY)
        assert "VOX_DB_PATH" in refused.value.hint
        process.kill()
        process.wait()
        with taken(path) as mark:
            assert (mark.record.log_id, mark.record.next_frame) == ("of the other process", 7)


def test_the_same_process_does_not_own_it_twice(path: Path) -> None:
    with taken(path), pytest.raises(ReplicaOff, match="in use"):
        Mark.take(path, DRIVER, PRIMARY)
    with taken(path):
        assert read_record(path) is not None


def test_only_the_owner_may_read_it(path: Path) -> None:
    before = os.umask(0)
    try:
        with taken(path):
            assert stat.S_IMODE(mark_of(path).stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_anyone_reads_what_the_owner_wrote_and_so_does_the_next_owner(path: Path) -> None:
    with taken(path) as mark:
        mark.update(log_id="log", next_frame=2**40, pages=3, digest=2**63, as_of_ms=1, error="lost")
        assert read_record(path) == mark.record
        with program(_READ, path) as (line, _):
            assert line == f"log {2**40}"
    with taken(path) as again:
        assert (again.record.log_id, again.record.pages, again.record.digest) == ("log", 3, 2**63)


_READ = """
import sys
from pathlib import Path
from vox_mesh.store.replica.mark import read_record
record = read_record(Path(sys.argv[1]))
print(record.log_id, record.next_frame, flush=True)
"""


def test_there_is_no_record_where_there_is_no_mark(path: Path) -> None:
    assert read_record(path) is None


@pytest.mark.parametrize(("driver", "primary"), [("native", PRIMARY), (DRIVER, "http://127.0.0.1:8081")])
def test_a_record_of_another_driver_or_primary_is_not_trusted(path: Path, driver: str, primary: str) -> None:
    with taken(path) as mark:
        mark.update(log_id="log", next_frame=9, pages=3, digest=4)
    with taken(path, driver, primary) as other:
        assert other.record == Record(driver, primary)


@many
@given(st.integers(0, 1_023), st.integers(1, 255))
def test_a_record_with_a_wrong_byte_counts_as_none(path: Path, at: int, flip: int) -> None:
    marker = mark_of(path)
    marker.unlink(missing_ok=True)
    with taken(path) as mark:
        mark.update(log_id="log", next_frame=9)
        written, record = marker.read_bytes(), mark.record
    spoiled = bytearray(written)
    spoiled[at] ^= flip
    marker.write_bytes(spoiled)
    assert read_record(path) in (None, record)  # a space may become another one
    if not written[at : at + 1].isspace():
        assert read_record(path) is None


@many
@given(st.integers(0, 1_023))
def test_a_record_that_was_cut_off_counts_as_none(path: Path, length: int) -> None:
    marker = mark_of(path)
    with taken(path) as mark:
        mark.update(log_id="log", next_frame=9, error="x" * 300)
        written, record = marker.read_bytes(), mark.record
    marker.write_bytes(written[:length])
    assert read_record(path) in (None, record)
    with taken(path) as again:
        assert again.record.log_id in ("", "log")
        assert read_record(path) == again.record


@pytest.mark.parametrize(
    "found", [b"", b"x", b"00000000 ", b"00000000 \n", bytes(1_024), b"\xff" * 5_000, b"SQLite format 3\0"]
)
def test_a_foreign_record_counts_as_none(path: Path, found: bytes) -> None:
    mark_of(path).write_bytes(found)
    assert read_record(path) is None
    with taken(path) as mark:
        assert mark.record.log_id == ""
        assert read_record(path) == mark.record


@many
@given(st.text(max_size=400) | st.text('\x01\u00fc\U0001f600\udcff"\\', min_size=300, max_size=400))
def test_no_error_makes_the_record_unreadable(path: Path, error: str) -> None:
    with taken(path) as mark:
        mark.update(log_id="x" * 36, next_frame=2**63, pages=2**32, digest=2**64 - 1, as_of_ms=2**42)
        mark.update(error=error)
        assert read_record(path) == mark.record
        assert bool(mark.record.error) is bool(error)


def test_the_record_holds_plain_values_only() -> None:
    """It is written as JSON and read back by its fields."""
    assert {field.type for field in fields(Record)} <= {"str", "int"}
