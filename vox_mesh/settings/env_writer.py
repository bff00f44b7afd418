"""Write settings into a `.env` file: private, approved, and without a change of its other lines."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from vox_mesh.errors import BadSettings
from vox_mesh.settings.trust import read_env_file, trust

_PREFIX: Final = "VOX_"


def set_variables(path: Path, values: Mapping[str, str], *, removed: Collection[str] = ()) -> None:
    """Set variables in a `.env` file, remove others, and approve the file.

    Raises `BadSettings` if the file holds settings of the mesh that this user has not approved: they would be
    approved with the new ones, unread.
    """
    file = read_env_file(path)
    if file is not None and not file.is_trusted and any(each.startswith(_PREFIX) for each in file.variables):
        raise BadSettings(
            f"{path} has settings of a mesh that you have not approved",
            hint="read it, then run `vox-mesh trust`, or remove them",
        )
    text = path.read_text() if file is not None else ""
    try:
        write_private(path, merged(text, values, removed))
    except OSError as error:
        raise BadSettings(
            f"{path} can't be written: {error.strerror}", hint="run this in a folder of your own"
        ) from None
    written = read_env_file(path)
    assert written is not None
    trust(written)


def merged(text: str, values: Mapping[str, str], removed: Collection[str] = ()) -> str:
    """Return the text of a `.env` file with these values, and without the removed variables."""
    names = "|".join(map(re.escape, (*values, *removed)))
    is_ours = re.compile(rf"\s*(?:export\s+)?(?:{names})\s*=", re.IGNORECASE)
    kept = [line for line in text.splitlines() if not is_ours.match(line)]
    return "\n".join((*kept, *(f"{name}={value}" for name, value in values.items()))) + "\n"


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read, at once or not at all."""
    descriptor, draft = tempfile.mkstemp(".new", f"{path.name}.", path.absolute().parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
