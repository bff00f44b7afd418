"""What every command does first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import SecretStr

from vox_mesh.cli.node.logs import set_up_logs
from vox_mesh.errors import BadSettings
from vox_mesh.model.base.homes import Home
from vox_mesh.runtime.open_store import open_engine
from vox_mesh.settings import Settings, load_settings
from vox_mesh.store.engine import Engine


def start() -> Settings:
    """Read the settings and set up the logs."""
    settings = load_settings()
    secrets = [value.get_secret_value() for _, value in settings if isinstance(value, SecretStr)]
    set_up_logs(settings.log_format, secrets, settings.agent_id)
    return settings


def start_shared(command: str) -> Settings:
    """The same for a command that makes no sense where nothing outlives it."""
    settings = start()
    if settings.home is Home.MEMORY:
        raise BadSettings(
            f"`vox-mesh {command}` would keep nothing: on the memory home all data ends with the process",
            hint="set VOX_MESH_ENABLED=1",
        )
    return settings


@asynccontextmanager
async def opened_engine(settings: Settings) -> AsyncIterator[Engine]:
    """The database below the store, closed at the end."""
    engine = await open_engine(settings)
    try:
        yield engine
    finally:
        await engine.close()
