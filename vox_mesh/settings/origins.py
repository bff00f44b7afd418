"""The origin of each setting: the environment, a file, the mesh of the folder, or `vox-mesh init`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pydantic_settings import PydanticBaseSettingsSource

from vox_mesh.settings.discovery import HERE, PLACES, locate_mesh
from vox_mesh.settings.fields import ENV_FILE
from vox_mesh.settings.secrets import CREDENTIALS, FILE_SUFFIX, is_exported
from vox_mesh.settings.settings import Settings, sources_of
from vox_mesh.settings.sources import (
    EnvFileSource,
    MeshEnvFileSource,
    MeshSource,
    SecretSource,
    fields_of,
    names_of,
)

_HOME: Final = "VOX_MESH_HOME"


def mesh_origin(settings: Settings) -> str:
    """Return how the mesh was found: the kind of place, or that VOX_MESH_HOME names it."""
    origin = setting_origins(settings).get(_HOME, "")
    return origin if origin in PLACES else _HOME


def setting_origins(settings: Settings) -> dict[str, str]:
    """Return the origin of each setting that is not a default, by the name of its variable."""
    found: dict[str, str] = {}
    state: dict[str, object] = {}
    for source in sources_of(Settings, ENV_FILE):
        source._set_current_state(state)  # noqa: SLF001 - as pydantic does before it calls a source
        given = source()
        for field in fields_of(given, Settings):
            name = _variable(field)
            found.setdefault(name, _origin(source, name, found))
        state = given | state
    for field in settings.model_fields_set - fields_of(state, Settings):
        found[_variable(field)] = "an argument"
    return dict(sorted(found.items()))


def _variable(field: str) -> str:
    """Return the variable that sets a field: the first one that is exported, or else its own."""
    names = names_of(Settings.model_fields[field])
    return next((name for name in names if is_exported(name)), names[0])


def _origin(source: PydanticBaseSettingsSource, name: str, earlier: dict[str, str]) -> str:
    match source:
        case MeshSource() if name == "VOX_MESH_ENABLED":
            return "vox-mesh init"
        case MeshSource():
            return locate_mesh().place if earlier.get(_HOME, HERE) in PLACES else _HOME
        case EnvFileSource():
            return str(Path(ENV_FILE).absolute())
        case MeshEnvFileSource():
            return str(source.path)
        case SecretSource() if not is_exported(name):
            return name + FILE_SUFFIX if os.environ.get(name + FILE_SUFFIX) else CREDENTIALS
        case _:
            return "the environment"
