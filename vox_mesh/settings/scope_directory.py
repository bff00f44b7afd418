"""The directory of scopes: which database has the mesh of each, as VOX_DB_URLS or the file it names says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from vox_mesh.errors import NotKnown
from vox_mesh.settings.fields import NAME

DIRECTORY: Final = "VOX_DB_URLS"
"""The variable."""

_PATH_STARTS: Final = ("/", "./", "../", "~")
_MAX_BYTES: Final = 1_048_576
_MAX_SCOPES: Final = 1_000
_COMMENT: Final = "#"
_FORM: Final = "SCOPE=URL or SCOPE=URL,TOKEN_FILE"


class ScopeEntry(NamedTuple):
    """The database of a scope, and the file with its token."""

    url: str
    token_file: Path | None


class ScopeDirectory(NamedTuple):
    """The databases of all scopes, by the name of the scope."""

    entries: Mapping[str, ScopeEntry]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the scopes, in the order of the directory."""
        return tuple(self.entries)

    def entry(self, scope: str) -> ScopeEntry:
        """Return the entry of a scope. Raises `NotKnown` if there is none."""
        if scope not in self.entries:
            raise NotKnown(
                f"scope {scope!r} not found in {DIRECTORY}",
                hint=f"choose one of: {', '.join(self.names)}",
            )
        return self.entries[scope]


def read_directory(value: str, check_url: Callable[[str], str]) -> ScopeDirectory:
    """Return the directory that a value holds, or the file that it names. Raises `ValueError` with the fault.

    A value holds entries, separated by white space; a file, one in each line, and comments.
    """
    if not value.startswith(_PATH_STARTS):
        return _parse(value.split(), "", Path.cwd(), check_url)
    path = Path(value).expanduser()
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        text = content.decode()
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    if len(content) > _MAX_BYTES:
        raise ValueError(f"{path} is larger than 1 MiB")
    lines = (line.strip() for line in text.splitlines())
    found = [line for line in lines if line and not line.startswith(_COMMENT)]
    return _parse(found, f"{path}: ", path.parent, check_url)


def _parse(entries: list[str], place: str, folder: Path, check_url: Callable[[str], str]) -> ScopeDirectory:
    if not 0 < len(entries) <= _MAX_SCOPES:
        raise ValueError(f"{place}must have 1 to {_MAX_SCOPES} entries, got {len(entries)}")
    found: dict[str, ScopeEntry] = {}
    for number, entry in enumerate(entries, 1):
        # An entry is never shown: a URL that is refused may hold a secret.
        scope, is_assigned, rest = entry.partition("=")
        if not is_assigned or not NAME.fullmatch(scope):
            raise ValueError(f"{place}entry {number} must be {_FORM}")
        if scope in found:
            raise ValueError(f"{place}scope {scope} has more than one entry")
        url, _, token_file = rest.partition(",")
        try:
            check_url(url)
        except ValueError as error:
            raise ValueError(f"{place}scope {scope}: {_without_variable(error)}") from None
        found[scope] = ScopeEntry(url, folder / Path(token_file).expanduser() if token_file else None)
    return ScopeDirectory(MappingProxyType(found))


def _without_variable(error: ValueError) -> str:
    return str(error).replace("set VOX_DB_TOKEN", "name a file with it after a comma")
