"""Options that name or describe jobs: in a file, as a kind with a payload, or as a command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from vox_mesh.cli.support.options import Function, read_file, seconds
from vox_mesh.errors import BadManifest, BadValue, NotJson
from vox_mesh.model.base.json_text import read_json
from vox_mesh.model.jobs.manifest import Manifest, parse_manifests

job_argument: Final = click.argument("reference", metavar="JOB")
kind_option: Final = click.option(
    "--kind", metavar="PATTERN", help="Kind of the jobs, or a pattern such as 'cortex.*'."
)
limit_option: Final = click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    default=100,
    show_default=True,
    help="Maximum number of jobs.",
)


_TIMEOUT: Final = "1h"


class JobSource(NamedTuple):
    """A job as the command line describes it. `command` follows `--`."""

    file: str | None
    kind: str | None
    payload: str | None
    timeout: float | None
    command: list[str]
    isolated: bool

    def single_manifest(self, noun: str, **fields: Any) -> Manifest:
        """Return the manifest of a cron or rule. Raises `BadValue` if there are several."""
        given = {name: value for name, value in fields.items() if value is not None}
        if self.file is not None and given:
            raise click.UsageError(f"--{next(iter(given))} can't be combined with --file: set it in the file")
        manifests = self.manifests(**given)
        if len(manifests) != 1:
            raise BadValue(
                f"a {noun} must have 1 manifest, got {len(manifests)}", hint=f"add a {noun} for each manifest"
            )
        return manifests[0]

    def manifests(self, **fields: Any) -> list[Manifest]:
        """Return the manifests; `fields` are added to a manifest that is not from a file."""
        ways = [self.file is not None, self.kind is not None, bool(self.command)]
        if sum(ways) != 1:
            raise click.UsageError("pass exactly one of -f FILE, --kind KIND and -- COMMAND")
        if self.payload is not None and self.kind is None:
            raise click.UsageError("--payload needs --kind")
        if self.isolated and not self.command:
            raise click.UsageError("--isolated needs a command after --")
        if self.isolated and "cwd" in fields:
            raise click.UsageError("--isolated and --cwd can't be combined")
        if not str(fields.get("cwd", "/")).startswith("/"):
            raise click.UsageError(f"--cwd: {fields['cwd']!r} is not an absolute path")
        if self.file is not None:
            if self.timeout is not None:
                raise click.UsageError("--timeout can't be combined with --file: set it in the file")
            return parse_manifests(*read_file(self.file))
        if self.timeout is not None:
            if self.timeout % 1:
                raise click.UsageError(f"--timeout must be in whole seconds, got {self.timeout:g}")
            fields["timeout"] = int(self.timeout)
        if self.kind is not None:
            payload = None if self.payload is None else json_option_value("--payload", self.payload)
            return [Manifest.of(kind=self.kind, payload=payload, **fields)]
        if not self.isolated and "cwd" not in fields:
            fields["cwd"] = current_folder()
        return [Manifest.of(command=self.command, **{"timeout": int(seconds(_TIMEOUT)), **fields})]


def current_folder() -> str:
    """Return the folder in which commands run by default. Raises `BadValue` if it is gone."""
    try:
        return str(Path.cwd())
    except OSError as error:
        raise BadValue(
            f"the current folder can't be used: {error.strerror}", hint="pass --cwd FOLDER or --isolated"
        ) from None


def tag_option(text: str) -> Callable[[Function], Function]:
    """Return the option for tags."""
    return click.option("--tag", "tags", metavar="TAG", multiple=True, help=text)


def binding_options(function: Function) -> Function:
    """Add the options that bind a job to the rhythm."""
    for option in (
        click.option("--during", metavar="PHASE", help="Start only in this phase of a bar, such as review."),
        click.option("--at", metavar="downbeat", help="Start not before the next bar begins."),
    ):
        function = option(function)
    return function


def job_options(function: Function) -> Function:
    """Add the options of a `JobSource`."""
    for option in (
        click.option(
            "--timeout",
            type=seconds,
            metavar="DURATION",
            help="Time limit of an attempt; 0 for none.",
            show_default=f"{_TIMEOUT} for a command, none for a kind",
        ),
        click.option("--isolated", is_flag=True, help="Run the command in an empty folder, not in this one."),
        click.option("--payload", metavar="JSON", help="Payload for the handler."),
        click.option("--kind", help="Kind of the job; a worker needs a handler for it."),
        click.option(
            "-f", "--file", metavar="FILE", help="File with manifests in YAML or JSON; - for stdin."
        ),
    ):
        function = option(function)
    return function


@contextmanager
def manifest_hint(noun: str) -> Iterator[None]:
    """Name the help of the command that adds a cron or rule, if its manifest is refused."""
    try:
        yield
    except BadManifest as bad:
        bad.hint = f"see `vox-mesh {noun} add --help`"
        raise


def json_option_value(option: str, text: str) -> Any:
    """Return the value of an option in JSON."""
    try:
        return read_json(text)
    except NotJson as error:
        raise click.BadParameter(
            f"""must be JSON, such as '{{"a": 1}}' or '"text"': {error}""", param_hint=option
        ) from None
    except BadValue as error:
        raise click.BadParameter(error.line, param_hint=option) from None
