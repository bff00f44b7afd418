"""`vox-mesh config`: the settings in use, and their sources."""

from __future__ import annotations

from typing import Any, Final

import click
from pydantic import SecretStr

from vox_mesh.cli.support.output import CommandGroup, json_option, show_several
from vox_mesh.cli.support.session import start
from vox_mesh.settings.fields import FIELDS
from vox_mesh.settings.origins import setting_origins

_DEFAULT: Final = "default"
_HIDDEN: Final = "***"


@click.group(cls=CommandGroup, no_args_is_help=False)
def config() -> None:
    """Show the settings and where they came from."""


@config.command()
@click.option("--all", "wants_all", is_flag=True, help="Include settings that have their default.")
@json_option
def show(wants_all: bool, as_json: bool) -> None:
    """Show the settings in use and the source of each.

    A secret is shown as ***. The first source that sets something wins: the environment, the .env file of the
    current folder, that of the mesh's folder, the mesh that was found, the default.

    \b
    Example:
      vox-mesh config show --all
    """
    settings = start("config show")
    origins = setting_origins(settings)
    records = []
    for name, field in FIELDS.items():
        origin = next((origins[each] for each in field.variables if each in origins), _DEFAULT)
        if wants_all or origin != _DEFAULT:
            value = _shown(getattr(settings, name))
            records.append({"setting": field.variable, "value": value, "from": origin})
    show_several(records, as_json=as_json)


def _shown(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return _HIDDEN
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
