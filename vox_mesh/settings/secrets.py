"""Secrets: from variables, files or systemd credentials; and out of the environment after the start."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from vox_mesh.errors import BadSettings
from vox_mesh.settings.process import deny_inspection, erase_variables

SECRET_VARIABLES: Final = (
    "VOX_DB_TOKEN",
    "TURSO_AUTH_TOKEN",
    "VOX_MESH_TOKEN",
    "VOX_MESH_READ_TOKEN",
    "VOX_MESH_METRICS_TOKEN",
    "VOX_AGENT_TOKEN",
    "VOX_ARCHIVE_SECRET",
    "VOX_BACKUP_SECRET",
)
"""The variables of this package that hold a secret."""

FILE_SUFFIX: Final = "_FILE"
"""A secret is also read from the file that the variable with this suffix names."""

CREDENTIALS: Final = "CREDENTIALS_DIRECTORY"
"""The variable in which systemd names the folder of a service's credentials."""

_MAX_BYTES: Final = 65_536
_taken: dict[str, str] = {}


def take_variables(names: Collection[str]) -> None:
    """Move variables out of the environment into the memory of this process, where `secret_of` finds them.

    Programs that this process starts do not inherit them, and no other process of this user can read them.
    """
    present = {name: os.environ[name] for name in names if name in os.environ}
    if present:
        _taken.update(present)
        erase_variables(present)
        deny_inspection()


def secret_of(name: str) -> str | None:
    """Return the value of a variable, also if it was taken out of the environment."""
    return os.environ.get(name) or _taken.get(name) or None


def without_credentials(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables for a program that must not act as the node: without its secrets and their files."""
    files = {name + FILE_SUFFIX for name in SECRET_VARIABLES}
    return {
        name: value
        for name, value in variables.items()
        if name not in files and name not in SECRET_VARIABLES and name != CREDENTIALS
    }


def is_exported(name: str) -> bool:
    """Return whether the environment had a variable at the start, empty or not."""
    return name in os.environ or name in _taken


def secret_from_file(name: str, variables: Mapping[str, str | None] = os.environ) -> str | None:
    """Return the secret in the file that `<name>_FILE` names. Raises `BadSettings` if it can't be read."""
    variable = name + FILE_SUFFIX
    path = variables.get(variable)
    return read_secret(Path(path), variable) if path else None


def secret_from_credentials(name: str) -> str | None:
    """Return the systemd credential that has the name of the variable."""
    folder = os.environ.get(CREDENTIALS)
    if not folder or not (path := Path(folder, name)).exists():
        return None
    return read_secret(path, name)


def read_secret(path: Path, variable: str) -> str:
    """Return the text of a file without its final line break. Raises `BadSettings` if there is none."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        text = content.decode().strip("\r\n")
    except OSError as error:
        reason = f"{path} can't be read: {error.strerror}"
    except UnicodeDecodeError:
        reason = f"{path} is not UTF-8 text"
    else:
        if text and len(content) <= _MAX_BYTES:
            return text
        reason = f"{path} is {'larger than 64 KiB' if text else 'empty'}"
    raise BadSettings(f"{variable}: {reason}", hint="name a file that holds the secret and nothing else")
