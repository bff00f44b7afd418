"""Slots: the identity that a process takes on start and gives back at its end.

A slot is a folder under `VOX_MESH_HOME`. The OS file lock on it goes with its process, however that ends;
the folder keeps the slot's writer name and spool for the next one.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from vox_mesh.errors import BadSettings, SlotInUse
from vox_mesh.store.files import make_private
from vox_mesh.store.script import new_key

ID_FILE: Final = "id"
"""Where a slot keeps the id of its node."""

_FOLDER: Final = "slots"


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot that this process holds."""

    name: str
    folder: Path
    writer: str
    descriptor: int

    def release(self) -> None:
        """Give the slot back."""
        os.close(self.descriptor)


def take_slot(home: Path, name: str | None = None) -> Slot:
    """Take the slot of that name, or the first that is free."""
    try:
        make_private(home / _FOLDER)
        if name is not None:
            return _take(slot_folder(home, name), name)
        return next(slot for number in count(1) if (slot := _try(home / _FOLDER / str(number))))
    except OSError as error:
        raise _unusable(home, error) from None


def take_command_slot(home: Path, name: str | None = None) -> Slot:
    """Take the slot that a command works for: that of its node, or the first."""
    try:
        make_private(home / _FOLDER)
        folder = slot_folder(home, name)
        return _take(folder, name or f"slot {folder.name}")
    except OSError as error:
        raise _unusable(home, error) from None


def _take(folder: Path, name: str) -> Slot:
    slot = _try(folder)
    if slot is None:
        raise SlotInUse(
            f"{name} is in use by {_holder(folder)}",
            hint="stop that process, or choose another VOX_MESH_NODE_ID",
        )
    return slot


def _unusable(home: Path, error: OSError) -> BadSettings:
    return BadSettings(
        f"VOX_MESH_HOME: {home} can't be used: {error.strerror}", hint="for example VOX_MESH_HOME=.vox"
    )


def slot_folder(home: Path, name: str | None = None) -> Path:
    """The folder of the slot of that name or with that node's id; without one, that of the first slot."""
    # Numbers are for those without a name; no name begins like this.
    own = f"_{name}" if name is not None and name.isdecimal() else name
    folder = home / _FOLDER / (own or "1")
    if name is not None and not folder.exists():
        for kept in sorted((home / _FOLDER).glob(f"*/{ID_FILE}")):
            if kept.read_text().strip() == name:
                return kept.parent
    return folder


def slots(home: Path) -> Iterator[Path]:
    """The folders of all slots."""
    return (home / _FOLDER).glob("*/")


def spools(home: Path) -> Iterator[Path]:
    """All spool files, of live slots and of those that wait for an owner."""
    return (home / _FOLDER).glob("*/spool-*.db")


def _try(folder: Path) -> Slot | None:
    folder.mkdir(exist_ok=True, mode=0o700)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()} {int(time.time())}".encode(), 0)
    return Slot(folder.name, folder, _writer(folder / "writer"), descriptor)


def _writer(path: Path) -> str:
    """The name under which this slot's scripts are remembered, made once."""
    if not path.exists() or not (written := path.read_text().strip()):
        written = new_key()
        draft = path.with_suffix(".new")
        draft.write_text(written + "\n")
        draft.replace(path)
    return written


def _holder(folder: Path) -> str:
    match (folder / "lock").read_text().split():
        case [pid, since]:
            age = max(0, int(time.time()) - int(since))
            return f"process {pid} on {socket.gethostname()}, which began {age} s ago"
        case _:
            return f"a process on {socket.gethostname()} that has only just begun"
