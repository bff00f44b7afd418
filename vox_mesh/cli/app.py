"""The table of commands, each loaded when it is called, and the exit codes of their errors."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from vox_mesh.cli.sections import SECTIONS
from vox_mesh.cli.summaries import SUMMARIES
from vox_mesh.cli.support import output
from vox_mesh.cli.support.error_report import ErrorReport, wants_json
from vox_mesh.cli.support.exit_codes import ExitCode, exit_code_of
from vox_mesh.errors import ApprovalPending, BadValue, MeshError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

NAME: Final = "vox-mesh"
"""The name of the program."""

_OUTPUT: Final = 1
_CORRECT: Final = "correct it and run the command again"

_COMMANDS: Final = {
    "agents": "vox_mesh.cli.node.agents:agents",
    "approvals": "vox_mesh.cli.node.approvals:approvals",
    "attention": "vox_mesh.cli.node.attention:attention",
    "beat": "vox_mesh.cli.rhythm.beat:beat",
    "budget": "vox_mesh.cli.rhythm.budget:budget",
    "completion": "vox_mesh.cli.completion:completion",
    "config": "vox_mesh.cli.config:config",
    "conflicts": "vox_mesh.cli.database.conflicts:conflicts",
    "console": "vox_mesh.cli.node.console:console",
    "cron": "vox_mesh.cli.jobs.crons:cron",
    "db": "vox_mesh.cli.database.db:db",
    "doctor": "vox_mesh.cli.doctor.doctor:doctor",
    "git": "vox_mesh.cli.jobs.git:git",
    "grant": "vox_mesh.cli.node.grants:grant",
    "guard": "vox_mesh.cli.locks.guard:guard",
    "help": "vox_mesh.cli.help:show_help",
    "hooks": "vox_mesh.cli.hosts.hooks:hooks",
    "inbox": "vox_mesh.cli.messages.inbox:inbox",
    "init": "vox_mesh.cli.init:init",
    "kind": "vox_mesh.cli.jobs.kinds:kind",
    "job": "vox_mesh.cli.jobs.job:job",
    "join": "vox_mesh.cli.database.join:join",
    "lock": "vox_mesh.cli.locks.lock:lock",
    "mcp": "vox_mesh.cli.hosts.mcp:mcp",
    "messages": "vox_mesh.cli.messages.messages:messages",
    "nodes": "vox_mesh.cli.node.nodes:nodes",
    "oplog": "vox_mesh.cli.database.oplog:oplog",
    "rhythm": "vox_mesh.cli.rhythm.rhythm:rhythm",
    "roles": "vox_mesh.cli.node.roles:roles",
    "route": "vox_mesh.cli.node.roles:route",
    "rule": "vox_mesh.cli.jobs.rules:rule",
    "scopes": "vox_mesh.cli.node.scopes:scopes",
    "score": "vox_mesh.cli.rhythm.score:score",
    "send": "vox_mesh.cli.messages.send:send",
    "server": "vox_mesh.cli.database.server:server",
    "setup": "vox_mesh.cli.hosts.setup:setup",
    "status": "vox_mesh.cli.status:status",
    "top": "vox_mesh.cli.node.top:top",
    "token": "vox_mesh.cli.database.token:token",
    "trust": "vox_mesh.cli.trust:trust",
    "ucxl": "vox_mesh.cli.rhythm.beat:ucxl",
    "up": "vox_mesh.cli.node.node_run:up",
    "worker": "vox_mesh.cli.jobs.worker:worker",
    "workflow": "vox_mesh.cli.jobs.workflow:workflow",
}


class _Commands(output.CommandGroup):
    """Imports a command only when it is called, so that `--version` and `--help` load none."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, name = _COMMANDS[cmd_name].split(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def summaries(self, ctx: click.Context) -> list[tuple[str, str]]:
        """Return the names and summaries from the generated table."""
        return [(name, SUMMARIES[name]) for name in _COMMANDS]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in sections."""
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, SUMMARIES[name]) for name in names if name in _COMMANDS])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names only: to load every command for its help is too slow for a Tab key."""
        from click.shell_completion import CompletionItem

        names = [CompletionItem(name) for name in _COMMANDS if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)


@click.group(cls=_Commands, no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name=NAME, prog_name=NAME)
def app() -> None:
    """Coordinate fleets of AI agents through one shared database.

    Settings come from VOX_* variables or a .env file: `vox-mesh config show` shows them, `vox-mesh doctor`
    checks them.

    \b
    Example:
      vox-mesh init
    """


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code. Every error is one line on stderr."""
    if sys.stdout is None:  # closed by the caller: the next file opened would take its descriptor
        os.dup2(os.open(os.devnull, os.O_RDONLY), _OUTPUT)
        sys.stdout = open(_OUTPUT, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - by number
    try:
        with app.make_context(NAME, list(arguments) or ["--help"]) as context:
            code: int | None = app.invoke(context)
        sys.stdout.flush()
        return code or ExitCode.DONE
    except click.exceptions.Exit as ending:
        return ending.exit_code
    except BrokenPipeError:
        # The reader of our output has exited.
        _drop_output()
        return ExitCode.BROKEN_PIPE
    except (Exception, KeyboardInterrupt) as error:
        return _report(error).show(NAME, as_json=wants_json(arguments))


def _report(error: BaseException) -> ErrorReport:
    match error:
        case KeyboardInterrupt() | click.Abort():
            hint = str(error) or "run the command again to continue"
            return ErrorReport("interrupted", hint, ExitCode.INTERRUPTED, "interrupted")
        case click.ClickException():
            return ErrorReport(_usage(error), f"see `{_path(error)} --help`", ExitCode.USAGE, "usage")
        case MeshError():
            hint = error.hint or (_CORRECT if isinstance(error, BadValue) else "run `vox-mesh doctor`")
            code = exit_code_of(error)
            asked = error.approval_id if isinstance(error, ApprovalPending) else None
            return ErrorReport(str(error), hint, code, error.code, error.retryable, True, asked)
        case OSError() if _is_of_output(error):
            _drop_output()
            what = f"cannot write to standard output: {error.strerror}"
            return ErrorReport(what, "free disk space or redirect the output", ExitCode.NO, "output_failed")
        case _:
            what = f"internal error: {type(error).__name__}: {error}"
            hint = "run it with VOX_DEBUG=1 and report the output as a bug"
            return ErrorReport(what, hint, ExitCode.BUG, "internal_error")


def _is_of_output(error: OSError) -> bool:
    """Return whether writing to standard output raised the error: only these modules write there."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename in (__file__, output.__file__, click.utils.__file__)


def _drop_output() -> None:
    """Discard the rest of the output: Python would report the same error again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage(error: click.ClickException) -> str:
    message = " ".join(error.format_message().split()).rstrip(".")
    return message[:1].lower() + message[1:]


def _path(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    return context.command_path if context is not None else NAME
