"""The homes that tests and benchmarks run on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from tools.sqld import Server
from vox_mesh import Settings, load_settings
from vox_mesh.model.base.homes import Driver, Home, ReplicaChoice
from vox_mesh.settings import variable_of
from vox_mesh.store.script import new_key


@dataclass(frozen=True)
class HomeCase:
    """A home and, on the mesh, the way to it."""

    home: Home
    driver: Driver = Driver.AUTO
    replica: ReplicaChoice = ReplicaChoice.OFF

    def __str__(self) -> str:
        if self.home is not Home.MESH:
            return self.home.value
        return f"mesh-{self.driver.value}" + ("" if self.replica is ReplicaChoice.OFF else "-replica")

    @property
    def needs_server(self) -> bool:
        """Whether a server must run."""
        return self.home is Home.MESH

    def settings(self, folder: Path, server: Server | None, **more: Any) -> Settings:
        """Settings for this home, in a folder and a scope of their own."""
        values: dict[str, Any] = {
            "enabled": self.home is not Home.MEMORY,
            "home_dir": folder / "vox",
            "db_path": folder / "vox" / "local.db",
            "scope_id": new_key(),
            "http": False,  # what is not about other nodes need not listen for them
        }
        if server is not None:
            values |= {"db_url": server.url, "db_token": server.token, "db_driver": self.driver}
            values["db_replica"] = self.replica
        return load_settings(_env_file=None, **(values | more))


MEMORY: Final = HomeCase(Home.MEMORY)
FILE: Final = HomeCase(Home.FILE)
MESH: Final = HomeCase(Home.MESH, Driver.WS)
MESH_REPLICA: Final = HomeCase(Home.MESH, Driver.WS, ReplicaChoice.AUTO)
MESH_HTTP: Final = HomeCase(Home.MESH, Driver.HTTP)
MESH_LIBSQL_CLIENT: Final = HomeCase(Home.MESH, Driver.LIBSQL_CLIENT)
ALL_HOMES: Final = (MEMORY, FILE, MESH, MESH_REPLICA, MESH_HTTP, MESH_LIBSQL_CLIENT)


def environment(settings: Settings) -> dict[str, str]:
    """The variables that make another process read the same settings."""
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
