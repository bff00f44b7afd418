"""`vox-mesh up`: a node of the mesh, with all that one does."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from vox_mesh.cli.node.logs import set_up_logs
from vox_mesh.cli.node.node_run import NodeRun, Work
from vox_mesh.cli.support.options import grace_option, handlers_option
from vox_mesh.jobs.exec.policy import ExecPolicy
from vox_mesh.jobs.worker.handlers import HandlerSet, load_handlers
from vox_mesh.model.base.homes import Home
from vox_mesh.runtime import loop
from vox_mesh.settings import EXAMPLES, Settings, load_settings, variable_of

_log = logging.getLogger(__name__)

_LEAVING_S: Final = 5.5
"""How long all else may take after the grace: with the usual one, a node has ended within 10 s."""

Function = TypeVar("Function", bound=Callable[..., Any])


def _mirrored(function: Function) -> Function:
    """An option for each setting. Secrets have none: everyone on a machine can read a command line."""
    for name, field in reversed(Settings.model_fields.items()):
        if "Secret" in str(field.annotation):
            continue
        variable = variable_of(name)
        option = name.replace("_", "-")
        told = f"As {variable}; for example {EXAMPLES[variable]}."
        if field.annotation is bool:
            add = click.option(f"--{option}/--no-{option}", name, default=None, help=f"As {variable}.")
        else:
            add = click.option(f"--{option}", name, metavar="VALUE", help=told)
        function = add(function)
    return function


@click.command()
@handlers_option
@click.option("--no-worker", is_flag=True, help="Take no jobs, whatever else is set.")
@grace_option("4s")
@click.option("--once", is_flag=True, help="Do what there is to do, and end.")
@_mirrored
def up(names: tuple[str, ...], no_worker: bool, grace: float, once: bool, **options: Any) -> int:
    """Be a node of the mesh, until SIGINT or SIGTERM: tick, sweep, deliver, take jobs, and serve HTTP.

    It takes jobs if it has something to work with: handlers, or commands with --worker-exec. A part that
    crashes is begun again. On a signal it gives back what it has in hand, lets go of what it holds and
    leaves, with 0 and within 10 s; a second one ends it at once.

    Every setting is an option, too, and then counts more than its variable; secrets are variables only.

    \b
    Example:
      vox-mesh up --enabled --node-id builder-1 --handlers my_handlers:handlers
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    settings = load_settings(**chosen)
    set_up_logs(settings.log_format)
    if settings.home is Home.MEMORY:
        _log.warning(
            "this node is for this process only, and shares nothing; set VOX_MESH_ENABLED=1 to share"
        )
    work = None if no_worker else _work(settings, load_handlers(names), grace)
    if no_worker and names:
        raise click.UsageError("--handlers are of no use with --no-worker")
    return loop.run(NodeRun(settings, work, grace + _LEAVING_S, once=once).run())


def _work(settings: Settings, handlers: HandlerSet, grace_s: float) -> Work | None:
    ExecPolicy.parsed(settings.worker_exec_allow)  # said before anything is begun
    if not handlers.patterns and not settings.worker_exec:
        return None
    return Work(handlers, settings.worker_concurrency, grace_s)
