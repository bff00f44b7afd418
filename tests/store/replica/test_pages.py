"""The replica's file: it holds what transactions left, is its owner's alone, and shows who else was at it."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.replica.frames import LOG
from tests.store.replica.owner import FILES, MANY, NAME, THREE, Owner, State, Transaction, owning
from tests.support.running.examples import many
from tests.support.running.lengths import SOAK
from vox_mesh.store.replica import pages
from vox_mesh.store.replica.replica import Incomplete, Spoiled
from vox_mesh.store.replica.wire import PAGE


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Callable[[], Path]]:
    """Makes folders, each a fresh one, and keeps no more than the last."""
    made = tmp_path / "files"

    def fresh() -> Path:
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        return made

    yield fresh
    shutil.rmtree(made, ignore_errors=True)


# --- transactions ---------------------------------------------------------------------------------

_cases = settings(many, max_examples=2_000 if SOAK else 80)


def transactions_by(random: Random) -> list[Transaction]:
    """A few transactions of a small database, that grow and shrink it and change pages more than once."""
    return [
        Transaction(
            tuple((random.randint(1, 9), random.randint(0, 255)) for _ in range(random.randint(1, 12))),
            random.randint(1, 9),
        )
        for _ in range(random.randint(1, 3))
    ]


@pytest.mark.soak
@_cases
@given(st.integers(0, 2**32))
def test_the_file_holds_what_the_transactions_left(folder: Callable[[], Path], seed: int) -> None:
    random, home, state = Random(seed), folder(), State()
    with owning(home) as owner:
        owner.file.start_over(LOG)
        for _ in range(random.randint(0, 6)):
            group = transactions_by(random)
            owner.take(*group)
            state = state.after(*group)
            assert owner.is_at(state)
            assert owner.file.is_untouched
            assert owner.file.size == len(state.marks) * PAGE
    with owning(home) as heir:
        assert heir.file.recover()
        assert heir.is_at(state)


@pytest.mark.soak
@_cases
@given(st.integers(0, 2**32))
def test_of_a_snapshot_the_newest_page_counts(folder: Callable[[], Path], seed: int) -> None:
    random, home = Random(seed), folder()
    older, newer = transactions_by(random), transactions_by(random)
    state = State().after(*older, *newer)
    whole = Transaction(tuple(enumerate(state.marks, 1)), len(state.marks))
    frames = [frame for each in (*older, *newer, whole) for frame in each.frames(0)]
    frames.reverse()
    with owning(home) as owner:
        owner.file.start_over(LOG)
        while frames:
            count = random.randint(1, len(frames))
            owner.file.add_older(frames[:count])
            del frames[:count]
        owner.file.apply_snapshot(state.next_frame, len(state.marks))
        assert owner.is_at(state)
    with owning(home) as heir:
        assert heir.file.recover()
        assert heir.is_at(state)


def test_what_was_forgotten_is_not_applied(tmp_path: Path) -> None:
    with owning(tmp_path) as owner:
        owner.file.start_over(LOG)
        owner.take(THREE)
        owner.file.add(Transaction(((1, 99), (2, 99), (3, 99)), 3).frames(3))
        owner.file.forget_pending()
        owner.take(Transaction(((2, 7),), 3))
        assert owner.is_at(State(marks=(1, 7, 3), next_frame=4))


def test_a_first_snapshot_that_lacks_pages_is_refused(tmp_path: Path) -> None:
    with owning(tmp_path) as owner:
        owner.file.start_over(LOG)
        owner.file.add_older(Transaction(((4, 4), (2, 2), (1, 1)), 0).frames(0))
        with pytest.raises(Incomplete, match="of 3 pages"):
            owner.file.apply_snapshot(9, 3)
        owner.file.add_older(Transaction(((3, 3),), 0).frames(0))
        owner.file.apply_snapshot(9, 3)
        assert owner.is_at(State(marks=(1, 2, 3), next_frame=9))
        owner.file.add_older(Transaction(((5, 5),), 0).frames(9))
        owner.file.apply_snapshot(10, 5)  # a later one brings only what has changed
        assert owner.is_at(State(marks=(1, 2, 3, 0, 5), next_frame=10))


def test_the_page_that_is_never_written_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_LOCK_PAGE", 3)
    with owning(tmp_path) as owner:
        owner.file.start_over(LOG)
        owner.file.add_older(Transaction(((4, 4), (2, 2), (1, 1)), 0).frames(0))
        owner.file.apply_snapshot(4, 4)
        assert owner.is_at(State(marks=(1, 2, 0, 4), next_frame=4))


def test_a_large_change_leaves_no_large_redo_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_MAX_REDO_BYTES", 100 * PAGE)
    with owning(tmp_path) as owner:
        owner.file.start_over(LOG)
        owner.take(MANY)
        assert (tmp_path / f"{NAME}.redo").stat().st_size == 0
        owner.take(THREE)
        assert owner.is_at(State().after(MANY).after(THREE))


def _spoil_before_it_is_applied(owner: Owner, change: Transaction) -> None:
    first = owner.file.next_frame
    owner.file.add(change.frames(first))
    redo = owner.path.with_name(f"{NAME}.redo")
    redo.write_bytes(bytes(redo.stat().st_size))
    owner.file.apply(first + len(change.changes), change.size_after)


def test_a_small_change_is_applied_from_memory(tmp_path: Path) -> None:
    with owning(tmp_path) as owner:
        owner.file.start_over(LOG)
        _spoil_before_it_is_applied(owner, THREE)
        assert owner.is_at(State().after(THREE))
        owner.take(Transaction(((2, 7),), 3))  # what was kept of the last one does not come back
        assert owner.is_at(State(marks=(1, 7, 3), next_frame=4))
    with owning(tmp_path) as heir:
        assert heir.file.recover()


def test_a_large_change_is_read_again_and_must_be_what_was_written(tmp_path: Path) -> None:
    with owning(tmp_path) as owner:
        owner.file.start_over(LOG)
        with pytest.raises(Spoiled):
            _spoil_before_it_is_applied(owner, MANY)


def test_a_discarded_copy_takes_no_space_and_is_not_trusted(tmp_path: Path) -> None:
    with owning(tmp_path) as owner:
        owner.file.start_over(LOG)
        owner.take(THREE)
        owner.file.discard()
        assert not owner.file.is_untouched
        assert owner.path.stat().st_size == 0
    with owning(tmp_path) as heir:
        assert not heir.file.recover()
        heir.file.start_over(LOG)
        heir.take(THREE)
        assert heir.is_at(State().after(THREE))


def test_only_the_owner_may_read_the_files(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with owning(tmp_path) as owner:
            owner.file.start_over(LOG)
            owner.take(THREE)
            assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in FILES] == [0o600] * 3
    finally:
        os.umask(before)


# --- room for further pages ----------------------------------------------------------------------


def test_the_file_keeps_its_size_while_the_database_grows_and_shrinks(tmp_path: Path) -> None:
    with owning(tmp_path) as owner:
        owner.file.start_over(LOG)
        owner.take(THREE)
        size = owner.path.stat().st_size
        assert size > 3 * PAGE
        larger = Transaction(((5, 50), (9, 90)), 9)
        smaller = Transaction(((1, 10),), 2)
        owner.take(larger)
        owner.take(smaller)
        assert owner.is_at(State().after(THREE).after(larger).after(smaller)), "nothing is left in the room"
        assert owner.path.stat().st_size == size


def test_a_file_without_room_is_taken_over(tmp_path: Path) -> None:
    """Older versions have left such files."""
    with owning(tmp_path) as owner:
        owner.file.start_over(LOG)
        owner.take(THREE)
        os.truncate(owner.path, 3 * PAGE)
    with owning(tmp_path) as heir:
        assert heir.file.recover()
        growing = Transaction(((4, 4),), 4)
        heir.take(growing)
        assert heir.is_at(State().after(THREE).after(growing))


def test_a_room_that_is_not_empty_is_not_trusted(tmp_path: Path) -> None:
    with owning(tmp_path) as owner:
        owner.file.start_over(LOG)
        owner.take(THREE)
        with owner.path.open("r+b") as file:
            file.seek(5 * PAGE)
            file.write(b"x")
    with owning(tmp_path) as heir:
        assert not heir.file.recover()


# --- another at the file --------------------------------------------------------------------


def _write_a_byte(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(5_000)
        file.write(b"x")


def _write_the_same(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(file.read(1))


def _replace(path: Path) -> None:
    times = path.stat()
    twin = path.with_name("twin")
    shutil.copy2(path, twin)
    twin.replace(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _remove(path: Path) -> None:
    path.unlink()


def _cut(path: Path) -> None:
    times = path.stat()
    os.truncate(path, PAGE)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("change", [_write_a_byte, _write_the_same, _replace, _remove, _cut])
def test_anothers_change_is_noticed_until_all_is_fetched_again(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    with owning(tmp_path) as owner:
        owner.file.start_over(LOG)
        assert owner.file.is_untouched
        owner.take(THREE)
        assert owner.file.is_untouched
        change(owner.path)
        assert not owner.file.is_untouched
        owner.file.start_over(LOG)
        owner.take(THREE)
        assert owner.file.is_untouched
        assert owner.is_at(State().after(THREE))
