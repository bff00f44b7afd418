"""`vox-mesh up`: run a node of the mesh."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from vox_mesh.cli.node.node_run import NodeRun, Work
from vox_mesh.cli.support.logs import set_up_logs
from vox_mesh.cli.support.options import grace_option, handlers_option
from vox_mesh.jobs.worker.handlers import HandlerSet, load_handlers
from vox_mesh.model.base.homes import Home
from vox_mesh.runtime import loop
from vox_mesh.runtime.exec_policy import check_exec_settings
from vox_mesh.settings import EXAMPLES, Settings, load_settings, variable_of

_log = logging.getLogger(__name__)

_LEAVING_S: Final = 5.5
"""How long leaving may take after the grace period: with the default one, a node ends within 10 s."""

Function = TypeVar("Function", bound=Callable[..., Any])


def _settings_options(function: Function) -> Function:
    """Add an option for each setting but secrets: every user of a machine can read command lines."""
    for name, field in reversed(Settings.model_fields.items()):
        if "Secret" in str(field.annotation):
            continue
        variable = variable_of(name)
        option = name.replace("_", "-")
        help_text = f"Value of {variable}, such as {EXAMPLES[variable]}."
        if field.annotation is bool:
            add = click.option(f"--{option}/--no-{option}", name, default=None, help=f"Value of {variable}.")
        else:
            add = click.option(f"--{option}", name, metavar="VALUE", help=help_text)
        function = add(function)
    return function


@click.command()
@handlers_option
@click.option("--no-worker", is_flag=True, help="Claim no jobs, whatever the settings are.")
@grace_option("4s")
@click.option("--once", is_flag=True, help="Do the pending work and exit.")
@_settings_options
def up(names: tuple[str, ...], no_worker: bool, grace: float, once: bool, **options: Any) -> int:
    """Run a node of the mesh until SIGINT or SIGTERM.

    A node sends heartbeats, expires leases, delivers messages and serves HTTP. It claims jobs if it has
    handlers, or with --worker-exec. A part that crashes is restarted. On a signal it releases its jobs and
    locks, leaves the mesh and exits with 0 within 10 s; a second signal ends it at once.

    Every setting is also an option, which overrides its variable; secrets are variables only.

    \b
    Example:
      vox-mesh up --enabled --node-id builder-1 --handlers my_handlers:handlers
    """
    chosen = {name: value for name, value in options.items() if value is not None}
    settings = load_settings(**chosen)
    set_up_logs(settings.log_format)
    if settings.home is Home.MEMORY:
        _log.warning("memory backend: this node shares nothing; set VOX_MESH_ENABLED=1 to share")
    work = None if no_worker else _work(settings, load_handlers(names), grace)
    if no_worker and names:
        raise click.UsageError("--handlers and --no-worker can't be combined")
    return loop.run(NodeRun(settings, work, grace + _LEAVING_S, once=once).run())


def _work(settings: Settings, handlers: HandlerSet, grace_s: float) -> Work | None:
    check_exec_settings(settings)
    if not handlers.patterns and not settings.worker_exec:
        return None
    return Work(handlers, settings.worker_concurrency, grace_s)
