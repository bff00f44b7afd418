"""`vox-mesh completion`: the completion scripts of shells, and the answers to their requests."""

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
    """Print the completion script of a shell.

    \b
    Needs bash 4.4 or newer. Put one of these in ~/.bashrc, ~/.zshrc or config.fish:
      eval "$(vox-mesh completion bash)"
      eval "$(vox-mesh completion zsh)"
      vox-mesh completion fish | source

    \b
    Example:
      vox-mesh completion bash
    """
    # The class's own `source` would start bash to ask its version, but the script may be for another machine.
    click.echo(ShellComplete.source(_completer(shell)))


def complete() -> int:
    """Answer a request of the shell. On failure print nothing: the shell would show it at the prompt."""
    try:
        shell, _, asked = os.environ[COMPLETE].partition("_")
        if shell not in _SHELLS or asked != "complete":
            return ExitCode.NO
        click.echo(_completer(shell).complete())
    except Exception:
        return ExitCode.NO
    return ExitCode.DONE


def _completer(shell: str) -> ShellComplete:
    from vox_mesh.cli.app import NAME, app

    kind = get_completion_class(shell)
    assert kind is not None
    return kind(app, {}, NAME, COMPLETE)
