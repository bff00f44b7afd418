"""`vox-mesh token`: tokens for a self-hosted database server and for the HTTP service."""

from __future__ import annotations

import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from vox_mesh.cli.support.options import seconds
from vox_mesh.cli.support.output import CommandGroup, json_option, show_one
from vox_mesh.cli.support.session import start
from vox_mesh.errors import BadSettings
from vox_mesh.model.base.keys import SigningKey, access_token, public_pem
from vox_mesh.nodes.home_token import new_token
from vox_mesh.nodes.key_file import load_or_create_key
from vox_mesh.settings.trust import config_folder
from vox_mesh.store.files import make_private, publish

_READ_ONLY_WARNING: Final = (
    "warning: on a server with SQL functions for files this token can write too; check with `vox-mesh doctor`"
)
_KEY_FILE: Final = "sqld.pem"
_MAX_TTL_S: Final = 3_650 * 86_400
_READABLE: Final = 0o644


@click.group(cls=CommandGroup, no_args_is_help=False)
def token() -> None:
    """Make tokens for database servers and the HTTP service."""


def _lifetime(text: str) -> int:
    lifetime = int(seconds(text))
    if not 1 <= lifetime <= _MAX_TTL_S:
        raise click.BadParameter(f"must be between 1s and 3650d, got {text}")
    return lifetime


@token.command()
@click.option("--read-only", is_flag=True, help="Make a token that can't write.")
@click.option("--ttl", type=_lifetime, metavar="DURATION", required=True, help="Lifetime of the token.")
@click.option(
    "--key",
    "key_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Private key; created if it does not exist.",
    show_default=f"{_KEY_FILE} in ~/.config/vox-mesh",
)
@json_option
def create(read_only: bool, ttl: int, key_file: Path | None, as_json: bool) -> None:
    """Make a token for a self-hosted database server.

    It is a value for VOX_DB_TOKEN. The first call also creates the private key, and next to it NAME.pub.pem:
    the public key, which the server is started with (SQLD_KEY). The private key can make tokens: keep it
    secret, and neither on the server nor where nodes run.

    A token that may only read can't be trusted to do no more on a server that was not started with
    deploy/sqld/start.sh: see `vox-mesh doctor`, file_access.

    \b
    Example:
      vox-mesh token create --read-only --ttl 30d
    """
    key_file = key_file or _default_key()
    is_new = not key_file.exists()
    key, public = _load_or_create(key_file)
    now = int(time.time())
    made = access_token(key, read_only=read_only, now_s=now, expires_s=now + ttl)
    expires_at = datetime.fromtimestamp(now + ttl, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if as_json:
        shown = {"access": "read" if read_only else "write", "expires_at": expires_at}
        files = {"key": str(key_file), "public_key": str(public), "is_new_key": is_new}
        show_one({"token": made, **shown, **files}, as_json=True)
        return
    if is_new:
        click.echo(f"created {key_file}; start the server with its public key {public}", err=True)
    if read_only:
        click.echo(_READ_ONLY_WARNING, err=True)
    click.echo(f"valid until {expires_at}, to {'read' if read_only else 'read and write'}", err=True)
    click.echo(made)


def _default_key() -> Path:
    """Return the file in the user's configuration; jobs of a node could read one in its home."""
    former = start("token create").home_dir / _KEY_FILE
    if not former.exists():
        return config_folder() / _KEY_FILE
    click.echo(f"{former} is next to a node, whose jobs may read it: move it to {config_folder()}", err=True)
    return former


def _load_or_create(key_file: Path) -> tuple[SigningKey, Path]:
    """Return the private key and the file of its public key; create what is missing."""
    public = key_file.with_name(f"{key_file.stem}.pub.pem")
    try:
        make_private(key_file.absolute().parent)
        if public.exists() and not key_file.exists():
            raise _mismatch(public, key_file)
        key = load_or_create_key(key_file, hint="pass another file with --key: a new key is created there")
        if not public.exists():
            _publish(public_pem(key), public)
        elif public_pem(key) not in public.read_bytes():  # the file may have several keys, for the server
            raise _mismatch(public, key_file)
        return key, public
    except OSError as error:
        raise BadSettings(
            f"key file {key_file} can't be used: {error.strerror}", hint="pass another file with --key"
        ) from None


def _mismatch(public: Path, key_file: Path) -> BadSettings:
    return BadSettings(
        f"{public} does not belong to {key_file}",
        hint="pass another file with --key, or move the public key away",
    )


def _publish(pem: bytes, path: Path) -> None:
    """Write the public key to its file, readable by the server's user."""
    descriptor, draft = tempfile.mkstemp(".new", f"{path.name}.", path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
        os.fchmod(descriptor, _READABLE)
    publish(Path(draft), path)


@token.command()
@json_option
def random(as_json: bool) -> None:
    """Make a random token for the HTTP service.

    It is a value for VOX_MESH_TOKEN, VOX_MESH_READ_TOKEN or VOX_MESH_METRICS_TOKEN.

    \b
    Example:
      vox-mesh token random
    """
    made = new_token()
    if as_json:
        show_one({"token": made}, as_json=True)
    else:
        click.echo(made)
