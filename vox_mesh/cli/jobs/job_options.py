"""How a job is told of on the command line: in a file, as a kind with a payload, or as a command."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import click
import orjson

from vox_mesh.cli.support.documents import read_file
from vox_mesh.cli.support.options import Function, seconds
from vox_mesh.model.jobs.manifest import Manifest, parse_manifests

_TIMEOUT: Final = "1h"


class AskedJob(NamedTuple):
    """A job as the command line asks for it. `command` is what stands after `--`."""

    file: str | None
    kind: str | None
    payload: str | None
    timeout: float | None
    command: list[str]

    def manifests(self, **fields: Any) -> list[Manifest]:
        """The manifests that are meant; those that are not from a file have these fields, too."""
        ways = [self.file is not None, self.kind is not None, bool(self.command)]
        if sum(ways) != 1:
            raise click.UsageError("name a job in one way: -f FILE, --kind KIND or -- COMMAND")
        if self.payload is not None and self.kind is None:
            raise click.UsageError("--payload goes with --kind")
        if self.file is not None:
            if self.timeout is not None:
                raise click.UsageError("--timeout goes with --kind or a command; a file has its own")
            return parse_manifests(*read_file(self.file))
        if self.timeout is not None:
            if self.timeout % 1:
                raise click.UsageError("--timeout is in whole seconds")
            fields["timeout"] = int(self.timeout)
        if self.kind is not None:
            payload = None if self.payload is None else _json(self.payload)
            return [Manifest.of(kind=self.kind, payload=payload, **fields)]
        return [Manifest.of(command=self.command, **{"timeout": int(seconds(_TIMEOUT)), **fields})]


def job_options(function: Function) -> Function:
    """The options of a command that is told of a job; together they are an `AskedJob`."""
    for option in (
        click.option(
            "--timeout",
            type=seconds,
            metavar="DURATION",
            help=f"How long an attempt may take, 0 for ever; by default {_TIMEOUT} for a command.",
        ),
        click.option("--payload", metavar="JSON", help="What its handler is given."),
        click.option("--kind", help="Its kind, for which a worker has a handler."),
        click.option("-f", "--file", metavar="FILE", help="A manifest in YAML or JSON; - is stdin."),
    ):
        function = option(function)
    return function


def _json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise click.BadParameter(f"{error}; text must be in quotes", param_hint="--payload") from None
