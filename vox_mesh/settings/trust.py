"""Trust in the `.env` file of a folder: who may have written it, and whether this user has approved it.

The folder may be one that another person prepared, such as a cloned repository. A file that another user may
have written is refused. Settings that decide where data and tokens go, and what runs, are used only if the
user has approved this very content with `vox-mesh trust`.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Final

from vox_mesh.errors import BadSettings
from vox_mesh.settings.discovery import mesh_env_file
from vox_mesh.settings.fields import ENV_FILE, FIELDS, PREFIX
from vox_mesh.settings.ownership import ownership_fault, ownership_hint

_MAX_BYTES: Final = 1 << 20
_HOME: Final = FIELDS["home_dir"].variable


@dataclass(frozen=True)
class EnvFile:
    """A `.env` file: its variables, and whether the user has approved its content."""

    path: Path
    text: str
    digest: str
    is_trusted: bool

    @cached_property
    def variables(self) -> Mapping[str, str | None]:
        """Return the variables that it sets.

        An untrusted file can't refer to variables of the environment: it could copy a secret into a harmless
        setting.
        """
        from dotenv import dotenv_values  # imported late: most files set nothing of the mesh

        return dotenv_values(stream=StringIO(self.text), interpolate=self.is_trusted)

    @property
    def may_set(self) -> bool:
        """Return whether it mentions any setting of the mesh."""
        return PREFIX in self.text.upper()


def read_env_file(path: Path) -> EnvFile | None:
    """Read a `.env` file, or return `None` if there is none.

    Raises `BadSettings` if other users may have written it.
    """
    try:
        content = _read_owned(path)
    except FileNotFoundError:
        return None
    digest = hashlib.sha256(content).hexdigest()
    is_trusted = _load().get(_key(path)) == digest
    return EnvFile(path, content.decode(), digest, is_trusted)


def env_files() -> list[EnvFile]:
    """Return the `.env` files that settings are read from: the current folder's, and the mesh's."""
    here = read_env_file(Path(ENV_FILE))
    written = None if here is None else here.variables.get(_HOME)
    path = mesh_env_file(os.environ.get(_HOME) or written or None)
    found = (here, None if path is None else read_env_file(path))
    return [file for file in found if file is not None]


def check_env_file(path: Path) -> None:
    """Raise `BadSettings` if other users may have written a `.env` file, or if it is none."""
    with suppress(FileNotFoundError):
        _read_owned(path)


def _read_owned(path: Path) -> bytes:
    link = path.lstat()
    with open(path, "rb", opener=_open_at_once) as file:
        for status in (link, os.fstat(file.fileno())):
            if (fault := ownership_fault(path, status)) is not None:
                raise BadSettings(f"{fault}: its settings are not used", hint=ownership_hint(path, status))
        content = file.read(_MAX_BYTES + 1) if stat.S_ISREG(status.st_mode) else None
    if content is None or len(content) > _MAX_BYTES:
        raise BadSettings(f"{path} must be a file of at most 1 MiB", hint="replace it by a text file")
    return content


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without waiting: a named pipe in a foreign folder could keep a command waiting."""
    return os.open(path, flags | os.O_NONBLOCK)


# --- approval ------------------------------------------------------------------------------------


def trust(file: EnvFile) -> None:
    """Approve the present content of a `.env` file."""
    _save({**_load(), _key(file.path): file.digest})


def distrust(path: Path) -> bool:
    """Withdraw the approval of a `.env` file; return whether there was one."""
    kept = _load()
    was_trusted = kept.pop(_key(path), None) is not None
    if was_trusted:
        _save(kept)
    return was_trusted


def config_folder() -> Path:
    """Return the folder of this user's configuration."""
    chosen = os.environ.get("XDG_CONFIG_HOME")
    try:
        base = Path(chosen) if chosen and Path(chosen).is_absolute() else Path.home() / ".config"
    except RuntimeError:  # a user without a home
        base = Path("/nonexistent")
    return base / "vox-mesh"


def _list_path() -> Path:
    return config_folder() / "trusted.json"


def _key(path: Path) -> str:
    return str(path.absolute().resolve())


def _load() -> dict[str, str]:
    """Return the approved digests by path. A list that others may have written approves nothing."""
    path = _list_path()
    try:
        with path.open("rb") as file:
            if ownership_fault(path, os.fstat(file.fileno())) is not None:
                return {}
            found = json.loads(file.read())
    except (OSError, ValueError):
        return {}
    return {str(name): str(digest) for name, digest in found.items()} if isinstance(found, dict) else {}


def _save(trusted: Mapping[str, str]) -> None:
    path = _list_path()
    try:
        import tempfile  # slow to import

        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, draft = tempfile.mkstemp(".new", path.name, path.parent)
        with os.fdopen(descriptor, "w") as file:
            json.dump(dict(trusted), file, indent=2)
        Path(draft).replace(path)
    except OSError as error:
        raise BadSettings(
            f"{path} can't be written: {error.strerror}", hint="set XDG_CONFIG_HOME to a folder of your own"
        ) from None
