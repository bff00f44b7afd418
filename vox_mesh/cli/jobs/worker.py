"""`vox-mesh worker`: run, list and drain workers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from vox_mesh.cli.jobs.job_options import tag_option
from vox_mesh.cli.node.node_run import NodeRun, Work
from vox_mesh.cli.support.options import grace_option, handlers_option
from vox_mesh.cli.support.output import CommandGroup, json_option, show_one, show_several
from vox_mesh.cli.support.session import run_command, start_shared
from vox_mesh.errors import BadSettings
from vox_mesh.jobs.exec.allow_list import AllowEntry
from vox_mesh.jobs.worker.capacity import MAX_CONCURRENCY
from vox_mesh.jobs.worker.handlers import load_handlers
from vox_mesh.mesh import Mesh
from vox_mesh.model.jobs.records import EXEC, checked_tags, matches
from vox_mesh.runtime import loop
from vox_mesh.runtime.agents import agent_kinds
from vox_mesh.runtime.exec_policy import check_exec_settings
from vox_mesh.views.jobs import WorkerView, find_worker, workers

_LEAVING_S: Final = 8.0
"""How long stopping commands and leaving the mesh may take after the grace period."""


@click.group(cls=CommandGroup, no_args_is_help=False)
def worker() -> None:
    """Run, list and drain workers."""


def _programs(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> str | None:
    """Return the programs of all options in the format of VOX_WORKER_EXEC_ALLOW."""
    programs = [each.strip() for text in given for each in text.split(",")]
    try:
        for program in programs:
            AllowEntry.parsed(program)
    except BadSettings as error:
        raise click.BadParameter(str(error).partition(": ")[2], context, option) from None
    return ",".join(programs) or None


@worker.command()
@handlers_option
@click.option("--kinds", "kinds", metavar="KIND", multiple=True, help="Kinds to work on; repeatable.")
@tag_option("Tag of this worker, for jobs that need it; repeatable.")
@click.option("--exec", "runs_commands", is_flag=True, help="Also run commands, as VOX_WORKER_EXEC=1.")
@click.option(
    "--exec-allow",
    "programs",
    metavar="PROGRAM",
    multiple=True,
    callback=_programs,
    help="Command that may run: a program, and patterns of its arguments; repeatable.",
)
@click.option(
    "--agents",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File of coding agents to run.",
    show_default="VOX_WORKER_AGENTS",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, MAX_CONCURRENCY),
    metavar="N",
    help="Maximum number of jobs at a time.",
    show_default="VOX_WORKER_CONCURRENCY",
)
@grace_option("5s")
@click.option("--until-idle", is_flag=True, help="Exit when no job of these kinds is left.")
def run(
    names: tuple[str, ...],
    kinds: tuple[str, ...],
    tags: tuple[str, ...],
    runs_commands: bool,
    programs: str | None,
    agents: Path | None,
    concurrency: int | None,
    grace: float,
    until_idle: bool,
) -> int:
    """Work on jobs as a node, until SIGINT or SIGTERM.

    On the first signal it claims no more jobs, finishes the running ones within the grace period or releases
    them, and exits with 0. A second signal exits at once, with 128 and the signal: its jobs are claimed again
    when their leases expire. In every case, no process of a command outlives the worker.

    Handler modules are also searched in the current folder.

    \b
    Example:
      vox-mesh worker run --app my_jobs:mesh
      vox-mesh worker run --handlers my_handlers:handlers --kinds 'cortex.extract.*' --concurrency 4
    """
    settings = start_shared("worker run")
    may_exec = (runs_commands or settings.worker_exec) and (not kinds or EXEC in kinds)
    if not may_exec and (programs is not None or EXEC in kinds):
        raise click.UsageError("commands need --exec, and --kinds exec if --kinds is given")
    handlers = load_handlers(names)
    chosen = {
        "worker_exec": may_exec,
        "worker_exec_allow": programs or settings.worker_exec_allow,
        "worker_agents": agents or settings.worker_agents,
    }
    settings = settings.model_copy(update=chosen)
    of_agents = agent_kinds(settings)
    if kinds:  # report a wrong kind before anything starts
        handlers.only(
            each for each in kinds if each != EXEC and not any(matches(each, kind) for kind in of_agents)
        )
    if not handlers.patterns and not may_exec and not of_agents:
        raise click.UsageError("nothing to work on: pass --app, --handlers, --exec or --agents")
    check_exec_settings(settings)
    work = Work(handlers, concurrency or settings.worker_concurrency, grace, kinds, tuple(checked_tags(tags)))
    return loop.run(NodeRun(settings, work, grace + _LEAVING_S, until_idle=until_idle).run())


@worker.command()
@click.argument("node")
@click.option("--undo", is_flag=True, help="Let the node claim jobs again.")
@json_option
def drain(node: str, undo: bool, as_json: bool) -> None:
    """Stop a node from claiming jobs, until undone.

    Its running jobs go on.

    \b
    Example:
      vox-mesh worker drain builder-1
    """
    show_one(vars(run_command("worker drain", lambda mesh: _drain(mesh, node, undo))), as_json=as_json)


async def _drain(mesh: Mesh, node_id: str, undo: bool) -> WorkerView:
    await find_worker(mesh, node_id)  # raises if there is none
    await (mesh.job_kinds.undrain(node_id) if undo else mesh.job_kinds.drain(node_id))
    return await find_worker(mesh, node_id)


@worker.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List the workers: kinds, capacity and running jobs.

    A node that is gone is listed while it still has jobs or is drained.

    \b
    Example:
      vox-mesh worker list
    """
    found = [vars(each) for each in run_command("worker list", workers)]
    if not as_json:
        found = [{**each, "kinds": ", ".join(each["kinds"])} for each in found]
    show_several(found, as_json=as_json)
