"""Options that several commands share, the parsing of their values, and the reading of documents."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from vox_mesh.errors import BadDocument, BadSettings, BadValue
from vox_mesh.model.base.durations import milliseconds

if TYPE_CHECKING:
    from vox_mesh.settings import Settings

Function = TypeVar("Function", bound=Callable[..., Any])

_EXTRA: Final = "Got unexpected extra argument"
"""The beginning of click's message about words that are neither options nor arguments."""


class TrailingCommand(click.Command):
    """Passes everything after the first `--` as the parameter `command`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, command = args, list[str]()
        if "--" in args:
            at = args.index("--")
            own, command = args[:at], args[at + 1 :]
        try:
            rest = super().parse_args(ctx, own)
        except click.UsageError as error:
            if command or not error.message.startswith(_EXTRA):
                raise
            raise click.UsageError(_trailing_usage(self), ctx) from None
        ctx.params["command"] = command
        return rest


def _trailing_usage(command: click.Command) -> str:
    usage = "the command must follow `--`, such as `-- make test`"
    if not any(each.name == "payload" for each in command.params):
        return usage
    return f"{usage}; without a command, pass --kind KIND --payload 'JSON'"


def seconds(text: str) -> float:
    """Parse a duration such as 5m, in seconds."""
    try:
        return milliseconds(text) / 1_000
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def acting_agent(name: str | None, settings: Settings, option: str) -> str:
    """Return the given agent, by default VOX_AGENT_ID, or else that of the coding agent that runs this.

    Raises `BadSettings` if there is none.
    """
    agent = name or settings.agent_id or _agent_here(settings)
    if not agent:
        raise BadSettings("no agent given", hint=f"pass {option} NAME or set VOX_AGENT_ID")
    return agent


def _agent_here(settings: Settings) -> str | None:
    from vox_mesh.cli.locks.paths import root_of  # imported late: most commands name the agent

    return agent_of_session(root_of(settings))


def agent_of_session(project: Path) -> str | None:
    """Return the agent of the coding agent that runs this command in its shell, or `None`."""
    # imported late: it parses files of hosts, and most commands name the agent
    from vox_mesh.hosts.setup.session_agent import session_agent

    return session_agent(os.environ, project)


def ttl_option(default: str) -> Callable[[Function], Function]:
    """Return the option for the lease of a lock."""
    return click.option(
        "--ttl",
        type=seconds,
        metavar="DURATION",
        help="Lease of the lock: it expires unless renewed.",
        show_default=default,
    )


handlers_option: Final = click.option(
    "--handlers",
    "--app",
    "names",
    metavar="MODULE:OBJECT",
    multiple=True,
    help="A MeshApp, a HandlerSet, or a function that registers handlers in the one it gets; repeatable.",
)


def grace_option(default: str) -> Callable[[Function], Function]:
    """Return the option for the grace period of a node."""
    return click.option(
        "--grace",
        type=seconds,
        metavar="DURATION",
        default=default,
        show_default=True,
        help="Grace period of running jobs at shutdown; unfinished ones are released.",
    )


class LockOptions(NamedTuple):
    """A lock as the command line requests it."""

    keys: tuple[str, ...]
    agent: str | None
    ttl: float | None
    wait: float
    shared: bool
    until: str | None = None

    def arguments(self, settings: Settings) -> dict[str, Any]:
        """Return the arguments of `acquire`; the holder is always named."""
        if self.ttl is not None and self.until is not None:
            raise click.UsageError("--ttl and --until can't be combined")
        return {**self._asdict(), "agent": acting_agent(self.agent, settings, "--agent")}


def lock_options(ttl: str) -> Callable[[Function], Function]:
    """Return the options of a command that acquires a lock; `ttl` describes the default lease."""
    return lambda function: _add_lock_options(function, ttl)


def _add_lock_options(function: Function, ttl: str) -> Function:
    for option in (
        click.option("--shared", is_flag=True, help="Acquire a shared lock."),
        click.option(
            "--wait",
            type=seconds,
            metavar="DURATION",
            default="0s",
            show_default=True,
            help="Time to wait while others hold a key.",
        ),
        click.option(
            "--until",
            type=click.Choice(["phase", "bar"]),
            help="End of the lock instead of --ttl: the end of this phase or bar.",
        ),
        ttl_option(ttl),
        click.option("--agent", help="Agent that holds the lock.", show_default="VOX_AGENT_ID"),
    ):
        function = option(function)
    return function


_STDIN: Final = "-"


class NamedText(NamedTuple):
    """A text, and its name in error messages."""

    text: bytes
    name: str


def read_file(file: str) -> NamedText:
    """Read a file; `-` is stdin."""
    from vox_mesh.model.documents.documents import MAX_BYTES  # imported late: few commands read documents

    name = "stdin" if file == _STDIN else file
    try:
        with click.open_file(file, "rb") as opened:
            # One byte more than allowed is enough for the size check to fail.
            return NamedText(opened.read(MAX_BYTES + 1), name)
    except OSError as error:
        raise BadValue(f"{name} can't be read: {error.strerror}", hint="pass a readable file") from None


def print_faults(bad: BadDocument, file: str) -> None:
    """Print the faults of a file to stderr, one per line; with --json, raise the error."""
    if click.get_current_context().params.get("as_json"):
        raise bad
    name = "stdin" if file == _STDIN else file
    for fault in bad.faults:
        click.echo(fault if fault.startswith(f"{name}:") else f"{name}: {fault}", err=True)
