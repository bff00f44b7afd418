"""`vox-mesh trust`: approve the `.env` file, or the mesh, of the current folder."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import click

from vox_mesh.cli.support.output import json_option, show_one
from vox_mesh.cli.support.session import start_shared
from vox_mesh.errors import MeshError
from vox_mesh.runtime.foreign_home import approve_home
from vox_mesh.settings import trust as approvals
from vox_mesh.settings.fields import ENV_FILE


class EnvFileMissing(MeshError):
    """There is no file to approve."""

    code: ClassVar[str] = "env_file_missing"


@click.command()
@click.option("--undo", is_flag=True, help="Withdraw the approval.")
@click.option("--mesh", "for_mesh", is_flag=True, help="Approve the mesh that was found, instead.")
@json_option
def trust(undo: bool, for_mesh: bool, as_json: bool) -> None:
    """Approve the .env file of the current folder.

    Without approval, settings that name servers, tokens, commands, addresses, files or folders are not taken
    from it: another person may have written it, as in a cloned repository. Read the file first. The approval
    is for its present content; after a change, run this again.

    A node does not start on a mesh that a cloned, copied or moved folder brought, because it would run the
    jobs in it. --mesh approves that mesh: look at `vox-mesh job list` first.

    \b
    Example:
      vox-mesh trust
    """
    if for_mesh:
        if undo:
            raise click.UsageError("--mesh and --undo can't be combined")
        show_one({"mesh": str(approve_home(start_shared("trust --mesh")).absolute())}, as_json=as_json)
        return
    path = Path(ENV_FILE)
    if undo:
        was_trusted = approvals.distrust(path)
        show_one({"file": str(path.absolute()), "was_trusted": was_trusted}, as_json=as_json)
        return
    file = approvals.read_env_file(path)
    if file is None:
        raise EnvFileMissing(f"there is no {path} in this folder", hint="change to the folder that has one")
    approvals.trust(file)
    names = sorted(file.variables)
    record = {"file": str(path.absolute()), "settings": names if as_json else ", ".join(names)}
    show_one(record, as_json=as_json)
