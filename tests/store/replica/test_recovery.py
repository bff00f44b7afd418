"""The replica's file, cut off at any instant or damaged in any way: a right state, or none trusted."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.replica.frames import LOG, OTHER_LOG
from tests.store.replica.owner import (
    FILES,
    MANY,
    NAME,
    THREE,
    Cut,
    Disk,
    Killed,
    Owner,
    State,
    Transaction,
    owning,
)
from tests.support.running.examples import many
from tests.support.running.lengths import SOAK
from vox_mesh.errors import ReplicaOff
from vox_mesh.store.replica.wire import PAGE

BEFORE: Final = State().after(THREE).after(Transaction(((5, 5), (1, 6)), 5))


def _growing(owner: Owner) -> None:
    owner.take(Transaction(((7, 70), (2, 20), (1, 10), (2, 21)), 8))


def _shrinking(owner: Owner) -> None:
    owner.take(Transaction(((5, 50), (1, 10)), 2))


def _several(owner: Owner) -> None:
    owner.take(Transaction(((6, 1), (1, 2)), 6), Transaction(((2, 3),), 3), Transaction(((4, 5),), 4))


def _large(owner: Owner) -> None:
    owner.take(MANY)


def _snapshot(owner: Owner) -> None:
    owner.file.add_older(Transaction(((4, 41), (2, 21)), 0).frames(11))
    owner.file.add_older(Transaction(((2, 22), (1, 11)), 0).frames(9))
    owner.file.apply_snapshot(13, 4)


def _in_parts(owner: Owner) -> None:
    first = owner.file.next_frame
    frames = Transaction(((1, 11), (2, 12), (3, 13), (4, 14)), 4).frames(first)
    owner.file.add(frames[:1])
    owner.file.add(frames[1:])
    owner.file.apply(first + 4, 4)


OPERATIONS: Final[dict[Callable[[Owner], None], State]] = {
    _growing: BEFORE.after(Transaction(((7, 70), (2, 20), (1, 10), (2, 21)), 8)),
    _shrinking: BEFORE.after(Transaction(((5, 50), (1, 10)), 2)),
    _several: State(marks=(2, 3, 3, 5), next_frame=BEFORE.next_frame + 4),
    _large: BEFORE.after(MANY),
    _snapshot: State(marks=(11, 21, 3, 41), next_frame=13),
    _in_parts: State(marks=(11, 12, 13, 14), next_frame=BEFORE.next_frame + 4),
}
each_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.__name__[1:])


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a replica in the state `BEFORE`."""
    made = tmp_path_factory.mktemp("settled")
    with owning(made) as owner:
        owner.file.start_over(LOG)
        owner.take(THREE)
        owner.take(Transaction(((5, 5), (1, 6)), 5))
        assert owner.is_at(BEFORE)
    return made


def replaced(folder: Path, source: Path) -> Path:
    """A fresh copy of the files in `source`."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    return folder


def run_cut_off(folder: Path, work: Callable[[Owner], object], disk: Disk) -> bool:
    """Let a process that has recovered do the work until it is killed; whether the mark was torn."""
    owner = Owner(folder)
    marked = owner.mark._descriptor
    try:
        assert owner.file.recover()
        with disk.watching(), suppress(Killed):
            work(owner)
    finally:
        owner.die()
    return disk.torn == marked


def calls_of(folder: Path, settled: Path, work: Callable[[Owner], object]) -> int:
    """How many system calls the work takes that change something."""
    disk = Disk()
    run_cut_off(replaced(folder, settled), work, disk)
    return disk.calls


def assert_usable(owner: Owner, state: State) -> None:
    """Whatever was recovered, the next transaction goes on from there."""
    transaction = Transaction(((1, 201), (6, 206)), 6)
    owner.take(transaction)
    assert owner.is_at(state.after(transaction))


@each_operation
@pytest.mark.parametrize("cut", Cut)
def test_cut_off_anywhere_it_is_the_state_before_or_after(
    tmp_path: Path, settled: Path, operation: Callable[[Owner], None], cut: Cut
) -> None:
    home, after = tmp_path / "home", OPERATIONS[operation]
    count = calls_of(home, settled, operation)
    assert count >= 6
    ends = set()
    for at in range(count):
        is_mark_torn = run_cut_off(replaced(home, settled), operation, Disk(at, cut))
        with owning(home) as heir:
            recovered = heir.file.recover()
            if is_mark_torn and not recovered:
                continue  # a kilobyte in one call: only a power failure can tear it
            assert recovered, f"cut off {cut.value} call {at}"
            assert heir.is_at(BEFORE, after), f"cut off {cut.value} call {at}"
            end = BEFORE if heir.is_at(BEFORE) else after
            ends.add(end)
            assert heir.file.is_untouched
            assert_usable(heir, end)
    assert ends == {BEFORE, after}


@each_operation
def test_cut_off_again_while_recovering_it_still_is_the_state_before_or_after(
    tmp_path: Path, settled: Path, operation: Callable[[Owner], None]
) -> None:
    once, twice, after = tmp_path / "once", tmp_path / "twice", OPERATIONS[operation]
    for at in range(calls_of(once, settled, operation)):
        run_cut_off(replaced(once, settled), operation, Disk(at, Cut.AFTER))
        for again in range(100):
            replaced(twice, once)
            disk = Disk(again, Cut.BEFORE)
            owner = Owner(twice)
            with disk.watching(), suppress(Killed):
                owner.file.recover()
            owner.die()
            with owning(twice) as heir:
                assert heir.file.recover(), f"cut off after call {at}, then before call {again}"
                assert heir.is_at(BEFORE, after)
            if disk.calls <= again:
                break
        else:
            pytest.fail("recovering never ends")


@pytest.mark.parametrize("cut", Cut)
@pytest.mark.parametrize("log_id", [LOG, OTHER_LOG])
def test_cut_off_while_starting_over_it_is_the_old_one_or_empty_or_not_trusted(
    tmp_path: Path, settled: Path, log_id: str, cut: Cut
) -> None:
    home = tmp_path / "home"

    def start_over(owner: Owner) -> None:
        owner.file.start_over(log_id)

    for at in range(calls_of(home, settled, start_over)):
        run_cut_off(replaced(home, settled), start_over, Disk(at, cut))
        with owning(home) as heir:
            if heir.file.recover():
                assert heir.is_at(BEFORE, State(log_id))
            heir.file.start_over(log_id)
            heir.take(THREE)
            assert heir.is_at(State(log_id).after(THREE))


def test_a_file_that_can_not_be_made_again_harms_no_other(tmp_path: Path) -> None:
    """Once closed, its descriptors are another's."""
    home = tmp_path / "home"
    home.mkdir()
    with owning(home) as owner:
        owner.file.start_over(LOG)
        owner.take(THREE)
        shutil.rmtree(home)
        with pytest.raises(OSError, match="No such file"):
            owner.file.start_over(OTHER_LOG)
        with (tmp_path / "of another part").open("wb+", buffering=0) as innocent:
            innocent.write(b"x" * 9)
            with suppress(OSError):
                owner.file.discard()
            assert innocent.seek(0, os.SEEK_END) == 9


# --- damage ---------------------------------------------------------------------------------------


def _halfway(at: int) -> Callable[[Path, Path], Path]:
    """A replica whose owner was killed while it applied: the redo file may be needed."""

    def make(home: Path, settled: Path) -> Path:
        run_cut_off(replaced(home, settled), _growing, Disk(at, Cut.AFTER))
        return home

    return make


HELD: Final[tuple[Callable[[Path, Path], Path], ...]] = (replaced, *map(_halfway, range(7)))
POSSIBLE: Final = (BEFORE, OPERATIONS[_growing])


def _flip(data: bytes, at: int, by: int) -> bytes:
    at %= max(len(data), 1)
    return data[:at] + bytes(byte ^ by for byte in data[at : at + 1]) + data[at + 1 :]


def _truncate(data: bytes, at: int, _: int) -> bytes:
    return data[: at % (len(data) + 1)]


def _extend(data: bytes, at: int, by: int) -> bytes:
    return data + bytes([by]) * (at % (3 * PAGE) + 1)


def _zero(data: bytes, at: int, by: int) -> bytes:
    at %= max(len(data), 1)
    return data[:at] + bytes(len(data[at : at + 16 * by])) + data[at + 16 * by :]


def _exchange_pages(data: bytes, at: int, by: int) -> bytes:
    one, other = (n % max(len(data) // PAGE, 1) * PAGE for n in (at, by))
    first, second = data[one : one + PAGE], data[other : other + PAGE]
    data = data[:one] + second + data[one + PAGE :]
    return data[:other] + first + data[other + PAGE :]


DAMAGE: Final = (_flip, _truncate, _extend, _zero, _exchange_pages)


def assert_right_or_refused(home: Path) -> bool:
    """Open what there is; whether it was trusted, and then it must be right."""
    try:
        owner = Owner(home)
    except ReplicaOff:
        assert not (home / f"{NAME}.mark").exists()
        return False
    try:
        recovered = owner.file.recover()
        assert not recovered or owner.is_at(*POSSIBLE)
        owner.file.start_over(LOG)
        assert_usable(owner, State())
        return recovered
    finally:
        owner.die()


@pytest.mark.soak
@settings(many, max_examples=2_000 if SOAK else 80)
@given(
    st.sampled_from(HELD),
    st.lists(
        st.tuples(
            st.sampled_from(FILES), st.sampled_from(DAMAGE), st.integers(0, 2**16), st.integers(1, 255)
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_no_damage_is_ever_trusted(
    tmp_path: Path,
    settled: Path,
    made: Callable[[Path, Path], Path],
    damages: Sequence[tuple[str, Callable[[bytes, int, int], bytes], int, int]],
) -> None:
    home = made(tmp_path / "home", settled)
    for name, damage, at, by in damages:
        path = home / name
        path.write_bytes(damage(path.read_bytes(), at, by))
    assert_right_or_refused(home)


@pytest.mark.parametrize("at", range(0, 5 * PAGE, 509))
def test_a_wrong_byte_in_any_page_is_noticed(tmp_path: Path, settled: Path, at: int) -> None:
    home = replaced(tmp_path / "home", settled)
    path = home / NAME
    path.write_bytes(_flip(path.read_bytes(), at, 0x10))
    assert not assert_right_or_refused(home)


def test_pages_in_each_others_place_are_noticed(tmp_path: Path, settled: Path) -> None:
    for one, other in combinations(range(len(BEFORE.marks)), 2):
        home = replaced(tmp_path / "home", settled)
        path = home / NAME
        path.write_bytes(_exchange_pages(path.read_bytes(), one, other))
        assert not assert_right_or_refused(home), f"pages {one + 1} and {other + 1}"


def test_a_wrong_byte_at_the_head_of_a_redo_file_that_is_needed_is_noticed(
    tmp_path: Path, settled: Path
) -> None:
    """The record would take its position from there."""
    needed = _halfway(2)(tmp_path / "needed", settled)
    trusted = 0
    for at in range(128):
        home = replaced(tmp_path / "home", needed)
        path = home / f"{NAME}.redo"
        path.write_bytes(_flip(path.read_bytes(), at, 0x01))
        trusted += assert_right_or_refused(home)
    assert trusted < 64, "only the gap behind the head holds nothing"


@pytest.mark.parametrize("made", HELD, ids=["settled", *(f"killed {at}" for at in range(7))])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_gone_or_another_replicas_is_never_trusted(
    tmp_path: Path, settled: Path, made: Callable[[Path, Path], Path], name: str
) -> None:
    made(tmp_path / "home", settled)
    (tmp_path / "home" / name).unlink()
    assert_right_or_refused(tmp_path / "home")
    shutil.rmtree(tmp_path / "home")
    other = tmp_path / "other"
    other.mkdir()
    with owning(other) as owner:
        owner.file.start_over(OTHER_LOG)
        owner.take(Transaction(((1, 101), (2, 102), (3, 103), (4, 104), (5, 105)), 5))
    made(tmp_path / "home", settled)
    shutil.copy(other / name, tmp_path / "home" / name)
    assert not assert_right_or_refused(tmp_path / "home") or name == f"{NAME}.redo" or made is not replaced


def test_without_its_redo_file_what_was_settled_is_still_good(tmp_path: Path, settled: Path) -> None:
    home = replaced(tmp_path / "home", settled)
    (home / f"{NAME}.redo").unlink()
    with owning(home) as heir:
        assert heir.file.recover()
        assert heir.is_at(BEFORE)
