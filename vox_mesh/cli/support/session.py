"""The session of a command: its settings and logs, its mesh, and the signals that end it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from vox_mesh.cli.support.early_signals import ENDING
from vox_mesh.cli.support.exit_codes import KILLED
from vox_mesh.cli.support.logs import set_up_logs
from vox_mesh.errors import BadSettings
from vox_mesh.model.base.backends import Backend
from vox_mesh.settings.discovery import no_mesh
from vox_mesh.settings.fields import UNIX
from vox_mesh.settings.quick import quick_settings
from vox_mesh.store.acting import acting_as

if TYPE_CHECKING:
    from vox_mesh.client import AgentClient
    from vox_mesh.mesh import Mesh
    from vox_mesh.settings import Settings
    from vox_mesh.store.engine import Engine

Result = TypeVar("Result")
Work: TypeAlias = "Callable[[Mesh], Coroutine[Any, Any, Result]]"
"""The work of a command on a mesh."""

AgentMesh: TypeAlias = "Mesh | AgentClient"
"""What the commands of an agent work on: a mesh, or a node that does it for them."""

AgentCommand: TypeAlias = "Callable[[AgentMesh], Coroutine[Any, Any, Result]]"
"""The work of a command that also goes through a node."""


def start(command: str, **values: Any) -> Settings:
    """Load the settings, with these values instead of the variables', and set up the logs.

    Raises `BadSettings` if the command should go through a node, which it can't.
    """
    settings = _load(**values)
    refuse_node(settings, command)
    return settings


def start_for_scopes(command: str) -> Settings:
    """Start a command that works on several scopes. Raises `BadSettings` without a directory of them."""
    from vox_mesh.settings import load_process_settings

    settings = load_process_settings()
    refuse_node(settings, command)
    if settings.directory is None:
        raise BadSettings(
            f"`vox-mesh {command}` of all scopes needs a directory of them, and VOX_DB_URLS is not set",
            hint="set VOX_DB_URLS, or run it without --all-scopes",
        )
    _set_up_logs(settings)
    return settings


def _load(**values: Any) -> Settings:
    from vox_mesh.settings import load_settings

    settings = load_settings(**values)
    _set_up_logs(settings)
    return settings


def _set_up_logs(settings: Settings) -> None:
    from pydantic import SecretStr  # imported late: short commands do without

    secrets = [value.get_secret_value() for _, value in settings if isinstance(value, SecretStr)]
    set_up_logs(settings.log_format, secrets, settings.agent_id)


def start_shared(command: str, **values: Any) -> Settings:
    """Start a command that needs a shared backend. Raises `BadSettings` on the memory backend."""
    settings = start(command, **values)
    _refuse_memory(settings, command)
    return settings


def start_quickly(command: str, *, through_node: bool = False) -> Settings:
    """Start a short command, which only reads attributes of its settings, as `start_shared` does.

    `through_node`: it also works through the node in VOX_MESH_NODE, and then needs no mesh.
    """
    settings = quick_settings()
    if settings is None:
        settings = _load()
    else:
        set_up_logs(settings.log_format, (), settings.agent_id)  # ordinary settings hold no secrets
    if settings.node is None:
        _refuse_memory(settings, command)
    elif not through_node:
        refuse_node(settings, command)
    return settings


def refuse_node(settings: Settings, command: str) -> None:
    """Raise `BadSettings` if a node is set, through which the command does not work."""
    if settings.node is not None:
        raise BadSettings(
            f"`vox-mesh {command}` does not work through a node, and VOX_MESH_NODE is set",
            hint="run it as the node's own user, without VOX_MESH_NODE",
        )


def _refuse_memory(settings: Settings, command: str) -> None:
    if settings.backend is Backend.MEMORY:
        raise _no_mesh(command, settings)


def _no_mesh(command: str, settings: Settings) -> BadSettings:
    if "enabled" in settings.model_fields_set:
        return BadSettings(
            f"`vox-mesh {command}` needs a mesh, and VOX_MESH_ENABLED=0 turns it off",
            hint="unset it, or set VOX_MESH_ENABLED=1",
        )
    return no_mesh(f"vox-mesh {command}")


@asynccontextmanager
async def engine_session(settings: Settings, *, beside_others: bool = False) -> AsyncIterator[Engine]:
    """Open the database below the store; `beside_others`, also the file of another application."""
    from vox_mesh.runtime.open_store import open_engine

    engine = await open_engine(settings, beside_others=beside_others)
    try:
        yield engine
    finally:
        await engine.close()


def run_agent_command(command: str, work: AgentCommand[Result], agent: str | None = None) -> Result:
    """Run the work of a command on the shared mesh, or through the node in VOX_MESH_NODE.

    `agent` acts; without it, VOX_AGENT_ID or the node.
    """
    settings = start_quickly(command, through_node=True)
    with nullcontext() if agent is None else acting_as(agent):
        return asyncio.run(run_as_agent(settings, agent, work))


def run_command(command: str, work: Work[Result]) -> Result:
    """Run the work of a command on the shared mesh and return its result."""
    return asyncio.run(run_on_mesh(start_quickly(command), work))


async def run_on_mesh(settings: Settings, work: Work[Result]) -> Result:
    """Run the work on the mesh that the settings choose, without joining it as a node."""
    from vox_mesh.mesh import Mesh

    async with Mesh.open_command(settings) as mesh:
        return await work(mesh)


async def run_as_agent(settings: Settings, agent: str | None, work: AgentCommand[Result]) -> Result:
    """Run the work of an agent on its mesh, or through the node in VOX_MESH_NODE."""
    if settings.node is None:
        return await run_on_mesh(settings, work)
    from vox_mesh.cli.support.options import acting_agent  # imported late, as the client is
    from vox_mesh.client import AgentClient

    name = acting_agent(agent, settings, "--agent")
    async with AgentClient.open(settings.node, name, key_file=_key_file(settings, name)) as client:
        return await work(client)


def _key_file(settings: Settings, agent: str) -> Path | None:
    """Return the file with the key of an agent; none for a socket, on which its user says who it is."""
    if settings.agent_key is not None or (settings.node or "").startswith(UNIX):
        return settings.agent_key
    from vox_mesh.nodes.agent_keys import agent_key_file  # imported late: few commands sign

    return agent_key_file(settings.home_dir, agent)


def run_until_signalled(work: Coroutine[Any, Any, int]) -> int:
    """Run the work and return its exit code; after a signal, which cancels the work, 128 and its number."""
    return asyncio.run(_run(work))


async def _run(work: Coroutine[Any, Any, int]) -> int:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    stopped_by: list[int] = []

    def stop(number: int) -> None:
        stopped_by.append(number)
        if len(stopped_by) == 1:
            task.cancel()

    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup and background shells ignore some
            loop.add_signal_handler(number, stop, number)
    try:
        return await work
    except asyncio.CancelledError:
        if not stopped_by:
            raise
        task.uncancel()
        return KILLED + stopped_by[0]
