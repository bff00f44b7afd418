"""The backends that tests and benchmarks run on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from tools.sqld import Server
from vox_mesh import Settings, load_settings
from vox_mesh.model.base.backends import Backend, Driver, ReplicaChoice
from vox_mesh.settings import variable_of
from vox_mesh.store.script import new_key


@dataclass(frozen=True)
class HomeCase:
    """A backend and, on a server, the protocol."""

    home: Backend
    driver: Driver = Driver.AUTO
    replica: ReplicaChoice = ReplicaChoice.OFF

    def __str__(self) -> str:
        if self.home is not Backend.SERVER:
            return self.home.value
        replica = {ReplicaChoice.OFF: "", ReplicaChoice.SHARED: "-shared"}.get(self.replica, "-replica")
        return f"mesh-{self.driver.value}{replica}"

    @property
    def needs_server(self) -> bool:
        """Whether it needs a server."""
        return self.home is Backend.SERVER

    def settings(self, folder: Path, server: Server | None, **more: Any) -> Settings:
        """Return settings for this backend, in their own folder and scope."""
        values: dict[str, Any] = {
            "enabled": self.home is not Backend.MEMORY,
            "home_dir": folder / "vox",
            "db_path": folder / "vox" / "local.db",
            "scope_id": new_key(),
            "http": False,  # a service is needed only by tests of other nodes
        }
        if server is not None:
            values |= {"db_url": server.url, "db_token": server.token, "db_driver": self.driver}
            values["db_replica"] = self.replica
        return load_settings(_env_file=None, **(values | more))


MEMORY: Final = HomeCase(Backend.MEMORY)
FILE: Final = HomeCase(Backend.FILE)
MESH: Final = HomeCase(Backend.SERVER, Driver.WS)
MESH_REPLICA: Final = HomeCase(Backend.SERVER, Driver.WS, ReplicaChoice.AUTO)
MESH_SHARED: Final = HomeCase(Backend.SERVER, Driver.WS, ReplicaChoice.SHARED)
MESH_HTTP: Final = HomeCase(Backend.SERVER, Driver.HTTP)
MESH_LIBSQL_CLIENT: Final = HomeCase(Backend.SERVER, Driver.LIBSQL_CLIENT)
ALL_HOMES: Final = (MEMORY, FILE, MESH, MESH_REPLICA, MESH_HTTP, MESH_LIBSQL_CLIENT)


def environment(settings: Settings) -> dict[str, str]:
    """Return the variables with which another process reads the same settings."""
    variables = {}
    for field in Settings.model_fields:
        value = getattr(settings, field)
        if isinstance(value, SecretStr):
            value = value.get_secret_value()
        if isinstance(value, float):
            value = f"{round(value * 1_000)}ms"
        if value is not None:
            variables[variable_of(field)] = str(value)
    return variables
