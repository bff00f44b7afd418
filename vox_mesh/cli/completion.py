"""`vox-mesh completion`: what makes a shell complete our commands, and the answers to what it asks."""

from __future__ import annotations

import os
from typing import Final

import click
from click.shell_completion import ShellComplete, get_completion_class

from vox_mesh.cli.support import COMPLETE
from vox_mesh.cli.support.exit_codes import ExitCode

_SHELLS: Final = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS), metavar="|".join(_SHELLS))
def completion(shell: str) -> None:
    """Print the script with which a shell completes commands and options; bash must be 4.4 or newer.

    \b
    For every new shell, put one of these in ~/.bashrc, ~/.zshrc or config.fish:
      eval "$(vox-mesh completion bash)"
      eval "$(vox-mesh completion zsh)"
      vox-mesh completion fish | source

    \b
    Example:
      vox-mesh completion bash
    """
    # Not the class's own `source`, which starts bash to ask for its version: the script is for any machine.
    click.echo(ShellComplete.source(_completing(shell)))


def complete() -> int:
    """Answer the shell. It shows what we print to whoever is typing: if anything fails, nothing."""
    try:
        shell, _, asked = os.environ[COMPLETE].partition("_")
        if shell not in _SHELLS or asked != "complete":
            return ExitCode.NO
        click.echo(_completing(shell).complete())
    except Exception:
        return ExitCode.NO
    return ExitCode.DONE


def _completing(shell: str) -> ShellComplete:
    from vox_mesh.cli.app import NAME, app

    kind = get_completion_class(shell)
    assert kind is not None
    return kind(app, {}, NAME, COMPLETE)
