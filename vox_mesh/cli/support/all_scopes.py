"""The option --all-scopes: a command that reads one mesh reads every scope of VOX_DB_URLS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar, cast

import click

from vox_mesh.cli.support.exit_codes import ExitCode, exit_code_of
from vox_mesh.cli.support.output import Record, printable, show_several
from vox_mesh.cli.support.session import run_on_mesh, start_for_scopes

if TYPE_CHECKING:
    from vox_mesh.cli.support.session import Work
    from vox_mesh.runtime.scopes import ScopeAnswer

Result = TypeVar("Result")

all_scopes_option: Final = click.option("--all-scopes", is_flag=True, help="Read every scope of VOX_DB_URLS.")


def show_all_scopes(
    command: str,
    work: Work[Result],
    records: Callable[[Result], Sequence[Record]],
    *,
    as_json: bool,
) -> int:
    """Do the work of a command in every scope, and print the records of all, each with its scope.

    A scope that can't be read is a line on stderr; in JSON it has an error. The command fails if all do.
    """
    from vox_mesh.runtime.scopes import read_scopes  # imported late: most commands read one mesh

    settings = start_for_scopes(command)
    answers = asyncio.run(read_scopes(settings, lambda scope: run_on_mesh(scope, work)))
    if as_json:
        show_several([_document(each, records) for each in answers], as_json=True)
    else:
        rows = [
            {"scope": each.scope, **record}
            for each in answers
            if each.error is None
            for record in records(cast("Result", each.result))
        ]
        names = dict.fromkeys(name for row in rows for name in row)
        show_several([{name: row.get(name) for name in names} for row in rows], as_json=False)
        for each in answers:
            if each.error is not None:
                line = f"vox-mesh: scope {each.scope} not read: {each.error.line}"
                click.echo(printable(line), err=True)
    faults = [each.error for each in answers if each.error is not None]
    return exit_code_of(faults[0]) if len(faults) == len(answers) else ExitCode.DONE


def _document(answer: ScopeAnswer[Result], records: Callable[[Result], Sequence[Record]]) -> Record:
    if answer.error is not None:
        error = {"code": answer.error.code, "message": str(answer.error), "hint": answer.error.hint}
        return {"scope": answer.scope, "records": None, "error": error}
    return {"scope": answer.scope, "records": list(records(cast("Result", answer.result))), "error": None}
