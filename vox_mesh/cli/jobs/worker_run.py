"""`vox-mesh worker run`: a node that works on jobs until it is told to stop."""

from __future__ import annotations

from typing import Final

import click

from vox_mesh.cli.node.node_run import NodeRun, Work
from vox_mesh.cli.support.options import grace_option, handlers_option
from vox_mesh.cli.support.start import start_shared
from vox_mesh.errors import BadSettings
from vox_mesh.jobs.exec.policy import ExecPolicy
from vox_mesh.jobs.worker.capacity import MAX_CONCURRENCY
from vox_mesh.jobs.worker.handlers import load_handlers
from vox_mesh.model.jobs.records import EXEC
from vox_mesh.runtime import loop

_LEAVING_S: Final = 8.0
"""How long commands that are stopped, and what is to be said of all, may take after the grace."""


def _programs(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> str | None:
    """The programs of all options as VOX_WORKER_EXEC_ALLOW has them."""
    programs = [each.strip() for text in given for each in text.split(",")]
    try:
        ExecPolicy(frozenset(programs))
    except BadSettings as error:
        raise click.BadParameter(str(error).partition(": ")[2], context, option) from None
    return ",".join(programs) or None


@click.command()
@handlers_option
@click.option("--kinds", "kinds", metavar="KIND", multiple=True, help="Only these kinds; repeatable.")
@click.option("--exec", "runs_commands", is_flag=True, help="Run commands, too, as VOX_WORKER_EXEC=1.")
@click.option(
    "--exec-allow",
    "programs",
    metavar="PROGRAM",
    multiple=True,
    callback=_programs,
    help="Run commands of this program only: a name or an absolute path; repeatable.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, MAX_CONCURRENCY),
    metavar="N",
    help="So many jobs at a time; by default VOX_WORKER_CONCURRENCY.",
)
@grace_option("5s")
@click.option("--until-idle", is_flag=True, help="End when no job of its kinds is left to be done.")
def run(
    names: tuple[str, ...],
    kinds: tuple[str, ...],
    runs_commands: bool,
    programs: str | None,
    concurrency: int | None,
    grace: float,
    until_idle: bool,
) -> int:
    """Work on jobs as a node of the mesh, until SIGINT or SIGTERM.

    Then it takes no more, finishes what it has in hand within the grace or gives it back, and leaves with 0.
    A second signal ends it at once, with 128 and the signal: what it had in hand comes again when its leases
    are over. However it ends, no process of a command outlives it.

    Modules are also looked for in this folder.

    \b
    Example:
      vox-mesh worker run --handlers my_handlers:handlers --kinds 'cortex.extract.*' --concurrency 4
    """
    settings = start_shared("worker run")
    may_exec = (runs_commands or settings.worker_exec) and (not kinds or EXEC in kinds)
    if not may_exec and (programs is not None or EXEC in kinds):
        raise click.UsageError("commands are run with --exec, and if --kinds names others, with --kinds exec")
    handlers = load_handlers(names)
    if kinds:
        handlers.only(each for each in kinds if each != EXEC)  # said before anything is begun
    if not handlers.patterns and not may_exec:
        raise click.UsageError("there is nothing to work on: give --handlers, --exec or both")
    chosen = {"worker_exec": may_exec, "worker_exec_allow": programs or settings.worker_exec_allow}
    settings = settings.model_copy(update=chosen)
    ExecPolicy.parsed(settings.worker_exec_allow)  # said before anything is begun
    work = Work(handlers, concurrency or settings.worker_concurrency, grace, kinds)
    return loop.run(NodeRun(settings, work, grace + _LEAVING_S, until_idle=until_idle).run())
