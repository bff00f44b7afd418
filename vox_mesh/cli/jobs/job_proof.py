"""`vox-mesh job verify` and `job bundle`: verify proofs of execution, also without the mesh."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import click

from vox_mesh.cli.jobs.job_options import job_argument
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.output import Record, fields, json_option, printable, show_lines, show_one
from vox_mesh.cli.support.session import run_command
from vox_mesh.errors import BadValue, ExportRefused
from vox_mesh.model.base.keys import is_public_key
from vox_mesh.model.jobs.proof import check_bundle
from vox_mesh.views.proofs import bundle_proof, verify_proof

_FILE = click.Path(path_type=Path)
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_PRIVATE: Final = 0o600


@click.command()
@click.argument("reference", required=False, metavar="[JOB]")
@click.option("--file", type=_FILE, help="File written by `vox-mesh job bundle`.")
@click.option(
    "--key", metavar="ed25519:HEX", help="With --file: public key of the worker that must have signed."
)
@json_option
def verify(reference: str | None, file: Path | None, key: str | None, as_json: bool) -> int:
    """Verify the proof of a job and its outputs.

    Ends with 0 if the proof holds; otherwise with 1 and a list of faults. --file needs no database and no
    settings: pass the worker's key, as you know it, with --key.

    \b
    Example:
      vox-mesh job verify --file bundle.json --key ed25519:3b6a...
    """
    if (reference is None) == (file is None):
        raise click.UsageError("pass either JOB or --file", click.get_current_context())
    if key is not None and file is None:
        raise click.UsageError("--key needs --file", click.get_current_context())
    if key is not None and not is_public_key(key):
        raise click.BadParameter(f"must be ed25519: and 64 hex digits, got {key!r}", param_hint="--key")
    view: Record
    if file is not None:
        faults, remarks = check_bundle(_read(file), worker_key=key)
        view = {"file": str(file), "valid": not faults, "faults": faults, "remarks": remarks}
    else:
        view = vars(run_command("job verify", lambda mesh: verify_proof(mesh, str(reference))))
    is_valid, faults, remarks = view["valid"], view["faults"], view["remarks"]
    if as_json:
        show_one(view, as_json=True)
    else:
        about = {name: view[name] for name in ("file", "job_id", "state", "trailers") if view.get(name)}
        verdict = "the proof holds" if is_valid else "the proof does not hold"
        lines = [f"wrong: {each}" for each in faults] + [f"note: {each}" for each in remarks]
        show_lines([*fields(about), *map(printable, lines), verdict])
    return ExitCode.DONE if is_valid else ExitCode.NO


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise BadValue(f"{file} can't be read: {error.strerror}", hint="pass another file") from None


@click.command()
@job_argument
@click.option("-o", "--output", "file", type=_FILE, help="New file for the bundle.", show_default="stdout")
@json_option
def bundle(reference: str, file: Path | None, as_json: bool) -> int:
    """Write a bundle to verify a job's proof elsewhere.

    It has the manifest, the proof and the outputs; an output that is not here, or too large, is represented
    by its hash. Only you can read the file. A bundle must not be changed, not even by a line break. A proof
    that does not hold is not bundled: it ends with 1, as `vox-mesh job verify` would.

    \b
    Example:
      vox-mesh job bundle 298aaf4c -o bundle.json
    """
    job_id, text, faults = run_command("job bundle", lambda mesh: bundle_proof(mesh, reference))
    if faults:
        for each in faults:
            click.echo(f"vox-mesh: {printable(each)}", err=True)
        return ExitCode.NO
    content = text.encode()
    if file is None:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return ExitCode.DONE
    _write(file, content)
    show_one({"job_id": job_id, "file": str(file), "bytes": len(content)}, as_json=as_json)
    return ExitCode.DONE


def _write(file: Path, content: bytes) -> None:
    try:
        descriptor = os.open(file, _NEW_FILE, _PRIVATE)
        with os.fdopen(descriptor, "wb") as new:
            new.write(content)
    except FileExistsError:
        raise ExportRefused(f"{file} already exists", hint="pass a new file") from None
    except OSError as error:
        raise BadValue(f"{file} can't be written: {error.strerror}", hint="pass another file") from None
