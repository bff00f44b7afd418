"""Write settings into a `.env` file: private, approved, and without a change of its other lines."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Collection, Mapping
from io import StringIO
from pathlib import Path

from vox_mesh.errors import BadSettings
from vox_mesh.settings.fields import PREFIX
from vox_mesh.settings.trust import read_env_file, trust


def with_variables(path: Path, values: Mapping[str, str], *, removed: Collection[str] = ()) -> str:
    """Return the text of a `.env` file with variables set, and others removed.

    Raises `BadSettings` if the file holds settings of the mesh that this user has not approved, or would hold
    them afterwards: they would be approved with the new ones, unread.
    """
    file = read_env_file(path)
    if file is not None and not file.is_trusted and _settings_in(file.text):
        raise BadSettings(
            f"{path} has settings of a mesh that you have not approved",
            hint="read it, then run `vox-mesh trust`, or remove them",
        )
    before = "" if file is None else file.text
    text = merged(before, values, removed)
    kept = {name: value for name, value in _settings_in(before).items() if name not in {*values, *removed}}
    if _settings_in(text) != {**kept, **values}:  # a quote that spans lines can hide settings, or ours
        raise BadSettings(
            f"{path} has a line that can't be kept next to the new settings",
            hint="close its quotes, and remove lines of VOX_ variables from quoted texts",
        )
    return text


def write_approved(path: Path, text: str) -> None:
    """Write a `.env` file, and approve it."""
    try:
        write_private(path, text)
    except OSError as error:
        raise BadSettings(
            f"{path} can't be written: {error.strerror}", hint="run this in a folder of your own"
        ) from None
    written = read_env_file(path)
    assert written is not None
    trust(written)


def _settings_in(text: str) -> dict[str, str | None]:
    """Return the mesh's settings in the text of a `.env` file, by variable, with references as written."""
    from dotenv import dotenv_values  # imported late, as where settings are read

    found = dotenv_values(stream=StringIO(text), interpolate=False)
    return {name.upper(): value for name, value in found.items() if name.upper().startswith(PREFIX)}


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
