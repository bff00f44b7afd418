"""What other processes can see of this one: its environment, its memory, its core dumps.

`/proc/PID/environ` shows the memory in which the kernel put the environment at the start. Removing a variable
does not change that memory, so it is overwritten here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

IS_LINUX: Final = sys.platform == "linux"

_PR_SET_DUMPABLE: Final = 4
_PR_SET_NO_NEW_PRIVS: Final = 38
_ENV_START: Final = 47
"""The place of `env_start` in `/proc/PID/stat`, counted after the name of the program; `env_end` follows."""


def erase_variables(names: Collection[str]) -> None:
    """Remove variables from the environment of this process and from the memory that others can read."""
    present = {os.fsencode(name) for name in names if name in os.environ}
    if not present:
        return
    import ctypes  # slow to import

    for address, length in [*_initial_values(present), *_current_values(present)]:
        ctypes.memset(address, 0, length)
    for name in names:
        os.environ.pop(name, None)


def _initial_values(names: Collection[bytes]) -> Iterator[tuple[int, int]]:
    """Yield address and length of the values in the memory that `/proc/PID/environ` shows."""
    import ctypes

    with suppress(OSError, ValueError, IndexError):  # no /proc, or an old kernel
        fields = Path("/proc/self/stat").read_bytes().rpartition(b") ")[2].split()
        address, end = (int(each) for each in fields[_ENV_START : _ENV_START + 2])
        if not 0 < address < end:
            return
        for entry in ctypes.string_at(address, end - address).split(b"\0"):
            name, found, value = entry.partition(b"=")
            if found and name in names:
                yield address + len(name) + 1, len(value)
            address += len(entry) + 1


def _current_values(names: Collection[bytes]) -> Iterator[tuple[int, int]]:
    """Yield address and length of the values in the environment of the C library."""
    import ctypes

    pointers = ctypes.POINTER(ctypes.c_void_p)
    library = ctypes.CDLL(None)
    if sys.platform == "darwin":
        find = library["_NSGetEnviron"]
        find.restype = ctypes.POINTER(pointers)
        environment = find().contents
    else:
        environment = pointers.in_dll(library, "environ")
    with suppress(ValueError):  # a null pointer: the environment is empty
        for place in count():
            if not (address := environment[place]):
                return
            name, found, value = ctypes.string_at(address).partition(b"=")
            if found and name in names:
                yield address + len(name) + 1, len(value)


def deny_inspection() -> bool:
    """Keep other processes of this user from reading this one's memory, and from dumping it.

    Return whether the platform can; only Linux can. Root can still read everything.
    """
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    return _prctl(_PR_SET_DUMPABLE, 0)


def deny_new_privileges() -> bool:
    """Keep the programs that this thread starts from gaining privileges, as with sudo; only on Linux."""
    return _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def _prctl(option: int, value: int) -> bool:
    if not IS_LINUX:
        return False
    import ctypes

    return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
