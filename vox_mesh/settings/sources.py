"""The sources of settings besides the variables of the environment: secrets, and a checked `.env` file."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
)

from vox_mesh.errors import BadSettings
from vox_mesh.settings.discovery import FALSE, mesh_defaults, mesh_env_file
from vox_mesh.settings.fields import PREFIX
from vox_mesh.settings.paths import resolved_in
from vox_mesh.settings.secrets import (
    FILE_SUFFIX,
    is_exported,
    secret_from_credentials,
    secret_from_file,
    secret_of,
)
from vox_mesh.settings.trust import EnvFile, read_env_file


def names_of(field: FieldInfo) -> tuple[str, ...]:
    """Return the variables that set a field."""
    alias = field.validation_alias
    return tuple(map(str, alias.choices)) if isinstance(alias, AliasChoices) else (str(alias),)


def is_secret(field: FieldInfo) -> bool:
    """Return whether a field holds a secret."""
    return SecretStr.__name__ in str(field.annotation)


class VariableSource(EnvSettingsSource):
    """The variables of the environment; the name of a field, such as TOKEN, is none of them."""

    def __call__(self) -> dict[str, Any]:
        """Return the values of the variables that are set."""
        if _variables_of(self.settings_cls).isdisjoint(self.env_vars):
            return {}  # the usual case in a program, without a look at the type of each field
        return _without_fields(super().__call__(), self.settings_cls)


class SecretSource(PydanticBaseSettingsSource):
    """Secrets that were taken out of the environment, files named by `<variable>_FILE`, and credentials."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return the secret of a field, its key, and that it is plain text."""
        names = names_of(field)
        for find in (_from_variable, secret_from_credentials):
            for name in names:
                if (secret := find(name)) is not None:
                    return secret, name, False
        return None, names[0], False

    def __call__(self) -> dict[str, Any]:
        """Return the secrets that are given, by variable."""
        found = {}
        for name, field in self.settings_cls.model_fields.items():
            if is_secret(field) and name not in self.current_state:  # as an argument, not as a variable
                value, key, _ = self.get_field_value(field, name)
                if value is not None:
                    found[key] = value
        return found


def _from_variable(name: str) -> str | None:
    value = secret_of(name)
    if value is None:
        return secret_from_file(name)
    if os.environ.get(name + FILE_SUFFIX):
        raise BadSettings(f"{name} and {name}{FILE_SUFFIX} are both set", hint="set one of them")
    return value


class EnvFileSource(DotEnvSettingsSource):
    """The `.env` file. Without the user's approval, only the `plain` fields are taken from it.

    Raises `BadSettings` if it sets another field that no earlier source has set.
    """

    def __init__(self, settings_cls: type[BaseSettings], env_file: Any, plain: Collection[str]) -> None:
        self._plain = plain
        self._files: list[EnvFile] = []
        super().__init__(settings_cls, env_file=env_file)

    def _read_env_file(self, file_path: Path) -> Mapping[str, str | None]:
        file = read_env_file(file_path)
        if file is None:
            return {}
        self._files.append(file)
        folder = file_path.parent
        return {
            name.lower(): resolved_in(folder, name.upper(), value)
            for name, value in file.variables.items()
            if value and _is_taken(name)
        }

    def __call__(self) -> dict[str, Any]:
        """Return the values that the file may set."""
        if not self._files:
            return {}
        decided = fields_of(self.current_state, self.settings_cls)
        given = EnvSettingsSource.__call__(self)  # not that of the parent class, which adds unknown names
        given = {**_without_fields(given, self.settings_cls), **self._secrets_in_files()}
        values = {key: value for key, value in given.items() if self._field(key) not in decided}
        for file in self._files:
            if not file.is_trusted:
                self._refuse_unapproved(file, values)
        return values

    def _field(self, key: str) -> str:
        return next(iter(fields_of((key,), self.settings_cls)), "")

    def _secrets_in_files(self) -> dict[str, str]:
        """Return the paths that the file gives for secrets; they are read once the file is approved."""
        found = {}
        for name in _secret_names(self.settings_cls):
            variable = (name + FILE_SUFFIX).lower()
            if path := self.env_vars.get(variable):
                if any(not file.is_trusted for file in self._files):
                    raise _unapproved(self._files[0].path, [name + FILE_SUFFIX])
                found[name] = secret_from_file(name, {name + FILE_SUFFIX: path}) or ""
        return found

    def _refuse_unapproved(self, file: EnvFile, values: Mapping[str, Any]) -> None:
        fields = self.settings_cls.model_fields
        refused = sorted(
            key
            for key, value in values.items()
            if (name := self._field(key)) not in self._plain and not _is_default(fields[name], str(value))
        )
        if refused:
            raise _unapproved(file.path, refused)


def _is_taken(name: str) -> bool:
    """Return whether a `.env` file may set a variable.

    Other names, such as those of Turso, belong to the application in the folder, not to the mesh. An exported
    variable wins, also if it is empty.
    """
    name = name.upper()
    return name.startswith(PREFIX) and not is_exported(name)


class MeshEnvFileSource(PydanticBaseSettingsSource):
    """The `.env` file of the mesh's folder, for settings that the current folder's does not set."""

    def __init__(self, settings_cls: type[BaseSettings], plain: Collection[str]) -> None:
        self._plain = plain
        super().__init__(settings_cls)

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return nothing: the file is found late."""
        return None, field_name, False

    @property
    def path(self) -> Path | None:
        """Return where the file would be, by the values of the sources before this one."""
        return mesh_env_file(_by_field(self.current_state, self.settings_cls).get("home_dir"))

    def __call__(self) -> dict[str, Any]:
        """Return the values that the file may set."""
        if self.path is None:
            return {}
        file = EnvFileSource(self.settings_cls, self.path, self._plain)
        file._set_current_state(self.current_state)  # noqa: SLF001 - as pydantic does before it calls a source
        return file()


class MeshSource(PydanticBaseSettingsSource):
    """The mesh of the current folder: its home, its database, and that it is enabled if `init` made it."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return nothing: the values depend on each other."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        """Return the values that no earlier source has set."""
        given = _by_field(self.current_state, self.settings_cls)
        fields = self.settings_cls.model_fields
        return {names_of(fields[name])[0]: value for name, value in mesh_defaults(given).items()}


def _unapproved(path: Path, names: Collection[str]) -> BadSettings:
    return BadSettings(
        f"{path} sets {', '.join(names)}: not used, because you have not approved this file",
        hint=f"read it, then run `vox-mesh trust`{f' in {path.parent}' if path.is_absolute() else ''}",
    )


def _secret_names(settings_cls: type[BaseSettings]) -> Iterator[str]:
    for field in settings_cls.model_fields.values():
        if is_secret(field):
            yield from names_of(field)


@cache
def _variables_of(settings_cls: type[BaseSettings]) -> frozenset[str]:
    """Return the variables that set a field, in lower case."""
    return frozenset(name.lower() for field in settings_cls.model_fields.values() for name in names_of(field))


def fields_of(keys: Collection[str], settings_cls: type[BaseSettings]) -> set[str]:
    """Return the fields that are set by these keys: variables, or names of fields."""
    wanted = {key.lower() for key in keys}
    return {
        name
        for name, field in settings_cls.model_fields.items()
        if name in wanted or any(each.lower() in wanted for each in names_of(field))
    }


def _by_field(state: Mapping[str, Any], settings_cls: type[BaseSettings]) -> dict[str, Any]:
    """Return the values by field, whether they are given by variables or by names of fields."""
    return {name: value for key, value in state.items() for name in fields_of((key,), settings_cls)}


def _without_fields(values: Mapping[str, Any], settings_cls: type[BaseSettings]) -> dict[str, Any]:
    """Return the values that are given by variables, not by names of fields."""
    return {key: value for key, value in values.items() if key not in settings_cls.model_fields}


def _is_default(field: FieldInfo, text: str) -> bool:
    return text == str(field.default) or (field.default is False and text.lower() in FALSE)
