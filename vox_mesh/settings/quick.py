"""Settings of a short command, read without pydantic, which takes longer to load than most commands to run.

Only ordinary settings are read here. For everything else, such as a secret, a server, an unusual spelling or
an invalid value, there is no result, and `load_settings` decides. A test compares both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from vox_mesh.errors import BadSettings
from vox_mesh.model.base.backends import Backend
from vox_mesh.model.base.durations import milliseconds
from vox_mesh.model.base.keys import is_public_key
from vox_mesh.model.base.reserved import MESH_AGENT, PERSON
from vox_mesh.settings.discovery import mesh_defaults, mesh_env_file
from vox_mesh.settings.fields import (
    ENV_FILE,
    FIELD_OF,
    FIELDS,
    NAME,
    PLAIN_FIELDS,
    PREFIX,
    Kind,
    SettingField,
)
from vox_mesh.settings.paths import resolved_in
from vox_mesh.settings.secrets import CREDENTIALS, FILE_SUFFIX, SECRET_VARIABLES, secret_of

if TYPE_CHECKING:
    from vox_mesh.settings.settings import Settings

Number = TypeVar("Number", int, float)

_BOOLEANS: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_INTEGER: Final = re.compile(r"0|[1-9][0-9]{0,14}")


class _Unusual(Exception):
    """A value or a source that only `load_settings` may judge."""


def _boolean(text: str, field: SettingField) -> bool:
    if text not in _BOOLEANS:
        raise _Unusual
    return _BOOLEANS[text]


def _name(text: str, field: SettingField) -> str:
    if not NAME.fullmatch(text) or text == MESH_AGENT:
        raise _Unusual
    return text


def _public_key(text: str, field: SettingField) -> str:
    if not is_public_key(text):
        raise _Unusual
    return text


def _text(text: str, field: SettingField) -> str:
    if text == MESH_AGENT or text.startswith(PERSON) or (field.most is not None and len(text) > field.most):
        raise _Unusual
    return text


def _integer(text: str, field: SettingField) -> int:
    if not _INTEGER.fullmatch(text):
        raise _Unusual
    return _within_bounds(int(text), field)


def _seconds(text: str, field: SettingField) -> float:
    try:
        return _within_bounds(milliseconds(text) / 1_000, field)
    except ValueError:
        raise _Unusual from None


def _within_bounds(number: Number, field: SettingField) -> Number:
    if (field.least is not None and number < field.least) or (field.most is not None and number > field.most):
        raise _Unusual
    return number


def _format(text: str, field: SettingField) -> str:
    if text not in ("text", "json"):
        raise _Unusual
    return text


def _read(text: str, field: SettingField) -> Any:
    if isinstance(field.kind, Kind):
        if field.kind not in _READERS:
            raise _Unusual
        return _READERS[field.kind](text, field)
    try:
        return field.kind(text)
    except ValueError:
        raise _Unusual from None


_READERS: Final[dict[Kind, Callable[[str, SettingField], Any]]] = {
    Kind.BOOLEAN: _boolean,
    Kind.NAME: _name,
    Kind.TEXT: _text,
    Kind.INTEGER: _integer,
    Kind.SECONDS: _seconds,
    Kind.PATH: lambda text, field: Path(text),
    Kind.KEY: _public_key,
    Kind.LOG_FORMAT: _format,
}
"""All kinds that are read here."""

_KNOWN: Final = frozenset(
    each.lower()
    for each in (
        *(name for field in FIELDS.values() for name in field.variables),
        *FIELDS,
        CREDENTIALS,
        *(name + FILE_SUFFIX for name in SECRET_VARIABLES),
    )
)
"""All names that could mean a setting, in lower case: pydantic ignores the case."""


class QuickSettings:
    """The settings of a command on the memory or file backend, with the attributes that `Settings` has."""

    def __init__(self, values: Mapping[str, Any], given: frozenset[str]) -> None:
        vars(self).update(values)
        self.model_fields_set = given

    if TYPE_CHECKING:
        enabled: bool
        db_path: Path

    @property
    def backend(self) -> Backend:
        """Return the backend that these settings choose."""
        return Backend.FILE if self.enabled else Backend.MEMORY

    @property
    def file_path(self) -> Path:
        """Return the database file of the file backend."""
        return self.db_path

    @property
    def endpoint(self) -> str:
        """Raise `BadSettings`: there is no server."""
        raise BadSettings("VOX_DB_URL is not set", hint="set VOX_DB_URL=libsql://my-db.turso.io")

    @property
    def directory(self) -> None:
        """Return `None`: there is no directory of scopes."""

    @property
    def is_database_elsewhere(self) -> bool:
        """Return whether the database is on another machine."""
        return False


def quick_settings() -> Settings | None:
    """Return the settings if they are ordinary, or `None` if `load_settings` must read them."""
    try:
        given = _given()
        values = {name: _read(text, FIELDS[name]) for name, text in given.items()}
        values |= mesh_defaults(values)
    except (_Unusual, BadSettings):  # the other reader reports the error
        return None
    defaults = {name: field.default for name, field in FIELDS.items()}
    return cast("Settings", QuickSettings({**defaults, **values}, frozenset(values)))


def _given() -> dict[str, str]:
    """Return the texts by field: of the environment, the current folder's `.env` file, and the mesh's."""
    if any(secret_of(name) is not None for name in SECRET_VARIABLES):
        raise _Unusual
    exported = {name: text for name, text in os.environ.items() if name.lower() in _KNOWN}
    given = _by_field(exported)
    given |= _in_env_file(Path(ENV_FILE), exported, given)
    path = mesh_env_file(given.get("home_dir"))
    return given if path is None else given | _in_env_file(path, exported, given)


def _by_field(variables: Mapping[str, str]) -> dict[str, str]:
    if any(name not in FIELD_OF or not _is_ordinary(text) for name, text in variables.items()):
        raise _Unusual
    return {FIELD_OF[name]: text for name, text in variables.items() if text}


def _is_ordinary(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _in_env_file(path: Path, exported: Mapping[str, str], given: Collection[str]) -> dict[str, str]:
    """Return the texts of a `.env` file for fields that are not given; approval is needed for most."""
    if not os.path.lexists(path):
        return {}
    from vox_mesh.settings.trust import read_env_file  # imported late: few folders have one

    try:
        file = read_env_file(path)
        variables = {} if file is None or not file.may_set else file.variables
    except (BadSettings, OSError, UnicodeDecodeError):
        raise _Unusual from None
    found = {
        name: resolved_in(path.parent, name, text or "")
        for name, text in variables.items()
        if name.upper().startswith(PREFIX) and name.lower() in _KNOWN and FIELD_OF.get(name) not in given
    }
    texts = _by_field(found)
    if any(name in exported or not text for name, text in found.items()):
        raise _Unusual
    if file is not None and not file.is_trusted and not PLAIN_FIELDS.issuperset(texts):
        raise _Unusual
    return texts
