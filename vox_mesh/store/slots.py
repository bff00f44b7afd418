"""Manage slots: the identity that a process takes when it starts and releases when it ends.

A slot is a folder under `VOX_MESH_HOME`. The OS releases its file lock with the process, however that ends;
the folder keeps the slot's writer name and spool for its next owner.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from vox_mesh.errors import BadSettings, SlotInUse
from vox_mesh.store.files import make_private
from vox_mesh.store.script import new_key

ID_FILE: Final = "id"
"""The file in a slot that holds the id of its node."""

_FOLDER: Final = "slots"


class Slot(NamedTuple):
    """A slot that this process holds."""

    name: str
    folder: Path
    writer: str
    descriptor: int

    def release(self) -> None:
        """Release the slot."""
        os.close(self.descriptor)


def take_slot(home: Path, name: str | None = None) -> Slot:
    """Take the slot of that name, or the first free one."""
    try:
        make_private(home / _FOLDER)
        if name is not None:
            return _take(slot_folder(home, name), name)
        return next(slot for number in count(1) if (slot := _try_take(home / _FOLDER / str(number))))
    except OSError as error:
        raise _home_error(home, error) from None


def take_command_slot(home: Path, name: str | None = None) -> Slot:
    """Take the slot that a command works for: its node's, or the first one."""
    try:
        make_private(home / _FOLDER)
        folder = slot_folder(home, name)
        return _take(folder, name or f"slot {folder.name}")
    except OSError as error:
        raise _home_error(home, error) from None


def _take(folder: Path, name: str) -> Slot:
    slot = _try_take(folder)
    if slot is None:
        raise SlotInUse(
            f"{name} is in use by {_describe_holder(folder)}",
            hint="stop that process, or choose another VOX_MESH_NODE_ID",
        )
    return slot


def _home_error(home: Path, error: OSError) -> BadSettings:
    return BadSettings(
        f"VOX_MESH_HOME: {home} can't be used: {error.strerror}", hint="for example VOX_MESH_HOME=.vox"
    )


def slot_folder(home: Path, name: str | None = None) -> Path:
    """Return the folder of the slot with that name or node id; without a name, of the first slot."""
    # Plain numbers are reserved for slots without a name; no name begins with an underscore.
    folder_name = f"_{name}" if name is not None and name.isdecimal() else name
    folder = home / _FOLDER / (folder_name or "1")
    if name is not None and not folder.exists():
        for id_file in sorted((home / _FOLDER).glob(f"*/{ID_FILE}")):
            if id_file.read_text().strip() == name:
                return id_file.parent
    return folder


def folder_of_slot(home: Path, slot_name: str) -> Path:
    """Return the folder of the slot that a process holds."""
    return home / _FOLDER / slot_name


def slots(home: Path) -> Iterator[Path]:
    """Return the folders of all slots."""
    return (home / _FOLDER).glob("*/")


def spools(home: Path) -> Iterator[Path]:
    """Return all spool files, of slots in use and of slots without an owner."""
    return (home / _FOLDER).glob("*/spool-*.db")


def _try_take(folder: Path) -> Slot | None:
    folder.mkdir(exist_ok=True, mode=0o700)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()} {int(time.time())}".encode(), 0)
    return Slot(folder.name, folder, _load_or_create_writer(folder / "writer"), descriptor)


def _load_or_create_writer(path: Path) -> str:
    """Return the writer name under which this slot's keys are stored; create it on first use."""
    if not path.exists() or not (writer := path.read_text().strip()):
        writer = new_key()
        draft = path.with_suffix(".new")
        draft.write_text(writer + "\n")
        draft.replace(path)
    return writer


def _describe_holder(folder: Path) -> str:
    match (folder / "lock").read_text().split():
        case [pid, since]:
            age = max(0, int(time.time()) - int(since))
            return f"process {pid} on {socket.gethostname()}, which began {age} s ago"
        case _:
            return f"a process on {socket.gethostname()} that has only just begun"
