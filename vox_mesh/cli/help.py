"""`vox-mesh help`: the help of a command."""

from __future__ import annotations

import click


@click.command("help")
@click.argument("names", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def show_help(context: click.Context, names: tuple[str, ...]) -> None:
    """Show the help of a command.

    The same as `vox-mesh COMMAND --help`; without a command, the list of all.

    \b
    Example:
      vox-mesh help lock acquire
    """
    found = context.find_root()
    for name in names:
        group = found.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"`{found.command_path}` has no commands", found)
        resolved, command, _ = group.resolve_command(found, [name])
        assert command is not None
        found = click.Context(command, parent=found, info_name=resolved)
    click.echo(found.get_help())
