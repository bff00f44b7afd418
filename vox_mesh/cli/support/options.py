"""Options that several commands have, and how their values are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import click

from vox_mesh.errors import BadSettings
from vox_mesh.model.base.durations import milliseconds
from vox_mesh.settings import Settings

Function = TypeVar("Function", bound=Callable[..., Any])


class TakesCommand(click.Command):
    """Takes what follows the first `--` for a command, whatever it looks like: the parameter `command`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, command = args, list[str]()
        if "--" in args:
            at = args.index("--")
            own, command = args[:at], args[at + 1 :]
        rest = super().parse_args(ctx, own)
        ctx.params["command"] = command
        return rest


def seconds(text: str) -> float:
    """A duration as people write it, in seconds."""
    try:
        return milliseconds(text) / 1_000
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def acting_agent(name: str | None, settings: Settings, what: str, option: str) -> str:
    """The agent that does something: the one that is named, or else VOX_AGENT_ID."""
    agent = name or settings.agent_id
    if not agent:
        raise BadSettings(f"nobody is named who would {what}", hint=f"add {option} NAME, or set VOX_AGENT_ID")
    return agent


ttl_option: Final = click.option(
    "--ttl",
    type=seconds,
    metavar="DURATION",
    help="How long it is held unless it is renewed; by default 30s for files, 5m for all else.",
)


handlers_option: Final = click.option(
    "--handlers",
    "names",
    metavar="MODULE:OBJECT",
    multiple=True,
    help="A HandlerSet, or a function that registers handlers in the one it is given; repeatable.",
)


def grace_option(default: str) -> Callable[[Function], Function]:
    """How long jobs in hand may go on when a node is to stop."""
    return click.option(
        "--grace",
        type=seconds,
        metavar="DURATION",
        default=default,
        show_default=True,
        help="How long jobs in hand may go on when it is to stop.",
    )


class Wanted(NamedTuple):
    """A lock as the command line asks for it."""

    keys: tuple[str, ...]
    agent: str | None
    ttl: float | None
    wait: float
    shared: bool
    until: str | None = None

    def asked(self, settings: Settings) -> dict[str, Any]:
        """What to ask of the mesh: who holds a lock is never left open."""
        if self.ttl is not None and self.until is not None:
            raise click.UsageError("a lock is either for a time or until something ends: --ttl or --until")
        return {**self._asdict(), "agent": acting_agent(self.agent, settings, "hold the lock", "--agent")}


def lock_options(function: Function) -> Function:
    """The options of a command that acquires a lock."""
    for option in (
        click.option("--shared", is_flag=True, help="Share the keys with others who do so too."),
        click.option(
            "--wait", type=seconds, metavar="DURATION", default="0s", help="How long to wait for the keys."
        ),
        click.option(
            "--until",
            type=click.Choice(["phase", "bar"]),
            help="Hold it until this phase or bar ends, and no longer; instead of --ttl.",
        ),
        ttl_option,
        click.option("--agent", help="Who holds it; by default VOX_AGENT_ID."),
    ):
        function = option(function)
    return function
