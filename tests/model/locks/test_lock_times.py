"""Times of locks: as text they are what the database would write, and nothing is lost on the way."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st

from vox_mesh.model.locks.records import iso_of, milliseconds_at

_AS_TEXT = "SELECT strftime('%Y-%m-%dT%H:%M:%fZ', ? / 1000.0, 'unixepoch')"


@given(st.integers(0, 4_102_444_800_000))
def test_a_time_as_text_is_the_same_time(milliseconds: int) -> None:
    assert milliseconds_at(iso_of(milliseconds)) == milliseconds


def test_a_time_is_written_as_the_database_does() -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        for milliseconds in (0, 999, 1_000, 1_794_734_169_857, 1_794_734_169_000, 4_102_444_799_999):
            assert database.execute(_AS_TEXT, (milliseconds,)).fetchone()[0] == iso_of(milliseconds)
