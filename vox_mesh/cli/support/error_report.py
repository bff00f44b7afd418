"""The report of an error: one line on stderr, as text, or as a JSON document with `--json`."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import click

from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.output import printable
from vox_mesh.cli.support.style import error_name


class ErrorReport(NamedTuple):
    """An error as the user sees it. `code` is that of the table in docs/reference/errors.md."""

    message: str
    hint: str
    exit_code: ExitCode
    code: str
    retryable: bool = False
    is_listed: bool = False
    """Whether the code is worth a search: it is printed."""
    approval_id: str | None = None
    """What to wait for, if an approval is pending."""

    def show(self, program: str, *, as_json: bool) -> int:
        """Print it and return the exit code."""
        from vox_mesh.cli.support.logs import is_debugging  # slow to import, and completion does not need it

        if is_debugging():
            traceback.print_exc()
        with suppress(OSError):  # stderr is closed as well
            click.echo(self._document() if as_json else self._line(program), err=True)
        return self.exit_code

    def _line(self, program: str) -> str:
        code = f" [{self.code}]" if self.is_listed else ""
        line = " ".join(f"{self.message}; {self.hint}{code}".split())
        return f"{error_name(f'{program}:')} {printable(line)}"

    def _document(self) -> str:
        import json  # imported late, as few commands fail

        document = {
            "code": self.code,
            "message": " ".join(self.message.split()),
            "hint": self.hint,
            "retryable": self.retryable,
            "exit_code": int(self.exit_code),
        }
        if self.approval_id is not None:
            document["approval_id"] = self.approval_id
        return json.dumps(document)


def wants_json(arguments: Sequence[str]) -> bool:
    """Return whether the arguments of this program, not those of a command that it runs, ask for JSON."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in own
