"""`vox-mesh token`: make what lets others in, at a server of one's own and at the HTTP service."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from vox_mesh.cli.support.options import seconds
from vox_mesh.cli.support.output import json_option, show_one
from vox_mesh.cli.support.start import start
from vox_mesh.errors import BadSettings
from vox_mesh.model.base.access_tokens import access_token, public_pem
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.nodes.key_file import load_or_create_key
from vox_mesh.store.files import make_private, publish

_KEY_FILE: Final = "sqld.pem"
_RANDOM_BYTES: Final = 32
_LONGEST_S: Final = 3_650 * 86_400
_READABLE: Final = 0o644


@click.group(no_args_is_help=False)
def token() -> None:
    """Make tokens: for a database server of one's own, and for the HTTP service."""


def _lifetime(text: str) -> int:
    lifetime = int(seconds(text))
    if not 1 <= lifetime <= _LONGEST_S:
        raise click.BadParameter("a token is good for 1s to 3650d")
    return lifetime


@token.command()
@click.option("--read-only", is_flag=True, help="It may read and not write.")
@click.option("--ttl", type=_lifetime, metavar="DURATION", required=True, help="How long it is good for.")
@click.option(
    "--key",
    "key_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"The private key, made if it is not there; by default {_KEY_FILE} in VOX_MESH_HOME.",
)
@json_option
def create(read_only: bool, ttl: int, key_file: Path | None, as_json: bool) -> None:
    """Make a token for a self-hosted database server: a value for VOX_DB_TOKEN.

    The first one also makes the key, and beside it NAME.pub.pem: the public half, which the server is started
    with (SQLD_KEY). Whoever has the private one can make tokens: keep it, and not on the server.

    \b
    Example:
      vox-mesh token create --read-only --ttl 30d
    """
    key_file = key_file or start().home_dir / _KEY_FILE
    is_new = not key_file.exists()
    key, public = _kept(key_file)
    now = int(time.time())
    made = access_token(key, read_only=read_only, now_s=now, expires_s=now + ttl)
    expires_at = datetime.fromtimestamp(now + ttl, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if as_json:
        shown = {"access": "read" if read_only else "write", "expires_at": expires_at}
        files = {"key": str(key_file), "public_key": str(public), "is_new_key": is_new}
        show_one({"token": made, **shown, **files}, as_json=True)
        return
    if is_new:
        click.echo(f"made the key {key_file}; start the server with its public half {public}", err=True)
    click.echo(f"good until {expires_at}, to {'read' if read_only else 'read and write'}", err=True)
    click.echo(made)


def _kept(key_file: Path) -> tuple[SigningKey, Path]:
    """The key, and the file with its public half."""
    public = key_file.with_name(f"{key_file.stem}.pub.pem")
    try:
        make_private(key_file.absolute().parent)
        if public.exists() and not key_file.exists():
            raise _taken(public, key_file)
        key = load_or_create_key(key_file, hint="name another file with --key: there a new key is made")
        if not public.exists():
            _publish(public_pem(key), public)
        elif public_pem(key) not in public.read_bytes():  # there may be others beside it, for the server
            raise _taken(public, key_file)
        return key, public
    except OSError as error:
        raise BadSettings(
            f"--key: {key_file} can't be used: {error.strerror}", hint="for example --key sqld.pem"
        ) from None


def _taken(public: Path, key_file: Path) -> BadSettings:
    return BadSettings(
        f"{public} is of another key than {key_file}",
        hint="name another file with --key, or move that one away",
    )


def _publish(pem: bytes, path: Path) -> None:
    """Write the public half to its file, which the server's user may read."""
    descriptor, draft = tempfile.mkstemp(".new", f"{path.name}.", path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
        os.fchmod(descriptor, _READABLE)
    publish(Path(draft), path)


@token.command()
@json_option
def random(as_json: bool) -> None:
    """Make a random token for the HTTP service: a value for VOX_MESH_TOKEN or VOX_MESH_READ_TOKEN.

    \b
    Example:
      vox-mesh token random
    """
    made = secrets.token_hex(_RANDOM_BYTES)
    if as_json:
        show_one({"token": made}, as_json=True)
    else:
        click.echo(made)
