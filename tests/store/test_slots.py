"""Slots: one live process each, however that process ends."""

from __future__ import annotations

import re
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.running.programs import program
from vox_mesh.errors import BadSettings, SlotInUse
from vox_mesh.store.slots import ID_FILE, slot_folder, spools, take_slot

HOLD = """
import sys
from pathlib import Path
from vox_mesh.store.slots import take_slot
slot = take_slot(Path(sys.argv[1]), *sys.argv[2:])
print(slot.name, slot.writer, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def running() -> Iterator[ExitStack]:
    """The programs of a test, ended with it."""
    with ExitStack() as stack:
        yield stack


def test_each_process_takes_the_first_free_slot(tmp_path: Path, running: ExitStack) -> None:
    first, _ = running.enter_context(program(HOLD, tmp_path))
    second, _ = running.enter_context(program(HOLD, tmp_path))
    third = take_slot(tmp_path)
    assert [first.split()[0], second.split()[0], third.name] == ["1", "2", "3"]
    assert len({first.split()[1], second.split()[1], third.writer}) == 3
    third.release()


def test_kill_frees_a_slot_and_the_next_owner_has_its_name_and_folder(
    tmp_path: Path, running: ExitStack
) -> None:
    line, process = running.enter_context(program(HOLD, tmp_path))
    other = take_slot(tmp_path)
    assert other.name == "2"
    process.kill()
    process.wait()
    heir = take_slot(tmp_path)
    assert [heir.name, heir.writer] == line.split()
    heir.release()
    other.release()


def test_a_slot_is_free_once_it_was_given_back(tmp_path: Path) -> None:
    slot = take_slot(tmp_path)
    slot.release()
    again = take_slot(tmp_path)
    assert (again.name, again.writer) == (slot.name, slot.writer)
    again.release()


def test_a_named_slot_in_use_names_the_process_that_has_it(tmp_path: Path, running: ExitStack) -> None:
    _, process = running.enter_context(program(HOLD, tmp_path, "builder-1"))
    holder = f"builder-1 is in use by process {process.pid} on {re.escape(socket.gethostname())}"
    with pytest.raises(SlotInUse, match=rf"^{holder}, which began \d+ s ago$") as refused:
        take_slot(tmp_path, "builder-1")
    assert "VOX_MESH_NODE_ID" in refused.value.hint
    take_slot(tmp_path, "builder-2").release()


def test_a_slot_in_use_says_how_old_its_holder_is(tmp_path: Path) -> None:
    slot = take_slot(tmp_path, "builder-1")
    lock = slot.folder / "lock"
    pid, since = lock.read_text().split()
    lock.write_text(f"{pid} {int(since) - 3_600}")
    with pytest.raises(SlotInUse, match=r"began 36\d\d s ago"):
        take_slot(tmp_path, "builder-1")
    lock.write_text("")  # it has the lock and has not said more yet
    with pytest.raises(SlotInUse, match="that has only just begun"):
        take_slot(tmp_path, "builder-1")
    slot.release()


def test_a_folder_belongs_to_its_name_and_the_first_slot_to_no_one_by_name(tmp_path: Path) -> None:
    slots = tmp_path / "slots"
    assert slot_folder(tmp_path) == slots / "1"
    assert slot_folder(tmp_path, "builder-1") == slots / "builder-1"
    assert not slots.exists(), "asking makes nothing"


def test_the_id_of_a_numbered_slot_leads_to_its_folder(tmp_path: Path) -> None:
    one, two = take_slot(tmp_path), take_slot(tmp_path)
    for slot, node_id in ((one, "host-1-abc"), (two, "host-2-def")):
        (slot.folder / ID_FILE).write_text(f"{node_id}\n")
    assert slot_folder(tmp_path, "host-2-def") == two.folder
    with pytest.raises(SlotInUse, match="host-2-def is in use"):
        take_slot(tmp_path, "host-2-def")
    two.release()
    again = take_slot(tmp_path, "host-2-def")
    assert (again.name, again.writer) == ("2", two.writer)
    assert slot_folder(tmp_path, "host-3-ghi").name == "host-3-ghi"
    again.release()
    one.release()


def test_a_name_that_is_a_number_is_not_the_slot_of_that_number(tmp_path: Path) -> None:
    named, first = take_slot(tmp_path, "1"), take_slot(tmp_path)
    assert first.name == "1"
    assert named.folder != first.folder
    assert slot_folder(tmp_path, "1") == named.folder
    named.release()
    first.release()


def test_a_slot_is_its_owners_alone(tmp_path: Path) -> None:
    slot = take_slot(tmp_path / "home")
    for folder in (tmp_path / "home", slot.folder.parent, slot.folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((slot.folder / "lock").stat().st_mode) == 0o600
    slot.release()


def test_spools_of_all_slots_are_found(tmp_path: Path) -> None:
    one, two = take_slot(tmp_path), take_slot(tmp_path)
    for slot in (one, two):
        (slot.folder / "spool-abc.db").touch()
    assert {path.parent.name for path in spools(tmp_path)} == {"1", "2"}
    one.release()
    two.release()


def test_a_home_that_is_no_folder_is_reported_as_a_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadSettings, match="VOX_MESH_HOME"):
        take_slot(tmp_path / "file")
