"""The infrastructure of a run: folders, disks, a server and the links to it. Removed at the end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from proof.chaos.disk import Disk
from proof.chaos.proxy import Proxy
from proof.chaos.schedule import PACE, Kind, Schedule, StoreKind
from proof.workloads.beats import tempo_of
from tools.faketime import SettableClock
from tools.homes import FILE, HomeCase
from tools.install_faketime import NoFaketime
from tools.sqld import Server, free_port
from vox_mesh import Settings
from vox_mesh.model.base.backends import Backend, Driver, ReplicaChoice
from vox_mesh.store.replica.paths import replica_path

TOKEN: Final = "a-token-that-no-stranger-knows"

_DRIVERS: Final = (Driver.WS, Driver.HTTP)
_DISK_MB: Final = 96
_DISK_MB_A_SECOND: Final = 0.3
"""A longer run needs larger disks: they must be full only when they are filled."""
_TEMPO: Final = "tempo.yaml"
_OWN_NAME: Final = "stage"
_COMPACTS: Final = ("--max-log-size", "1")
"""The replication log is compacted whenever it has grown by this many MB."""


@dataclass
class Infrastructure:
    """The folders, disks and server of a run."""

    folder: Path
    """For the files of nodes."""
    store: StoreKind
    server: Server | None = None
    settings: dict[str, Settings] = field(default_factory=dict)
    """Of each node."""
    links: dict[str, Proxy] = field(default_factory=dict)
    """Each node's link to the server."""
    clock: SettableClock | None = None
    """The clock of the server, if it can be set."""
    disks: dict[str, Disk] = field(default_factory=dict)
    """The disk of each node; on a file there is one for all, without a name."""

    @property
    def own_settings(self) -> Settings:
        """The settings of the environment itself, which queries the database over its own link."""
        case = HomeCase(Backend.SERVER, Driver.HTTP) if self.server else FILE
        return self._settings(_OWN_NAME, case, http=False, db_deadline="30s", db_request_timeout="15s")

    def replica_of(self, node: str) -> Path:
        """Return the file of a node's replica."""
        return replica_path(self.settings[node].db_path, node)

    def url_of(self, node: str) -> str:
        """Return the URL of a node's service."""
        return f"http://{self.settings[node].bind}"

    def _home(self, name: str) -> Path:
        return self.folder / name

    def _settings(self, name: str, case: HomeCase, **more: Any) -> Settings:
        values: dict[str, Any] = {
            "node_id": name,
            "scope_id": "chaos",
            "token": TOKEN,
            "tick": f"{PACE.tick_s * 1_000:.0f}ms",
            "db_deadline": "3s",
            "db_request_timeout": "1s",
            "tempo_policy": self.folder / _TEMPO,
        }
        if self.server is None:
            values["db_path"] = self._home("shared") / "mesh.db"
        return case.settings(self._home(name), self.server, **(values | more))

    async def create(self, schedule: Schedule, ending: AsyncExitStack) -> None:
        """Create everything the nodes need."""
        nodes = schedule.nodes
        (self.folder / _TEMPO).write_text(tempo_of(PACE))
        if self.store is StoreKind.SQLD:
            self.server = ending.enter_context(self._made_server(schedule))
        room = f"{_DISK_MB + round(schedule.seconds * _DISK_MB_A_SECOND)}m"
        for name in ("",) if self.server is None else nodes:
            if disk := Disk.mounted(self._home(name or "shared"), room):
                ending.callback(disk.unmount)
                self.disks[name] = disk
        for number, name in enumerate(nodes):
            self.settings[name] = await self._player_settings(number, name, ending)

    def _made_server(self, schedule: Schedule) -> Server:
        is_turned = any(fault.kind is Kind.DATABASE_CLOCK for fault in schedule.faults)
        if is_turned:
            with suppress(NoFaketime):
                self.clock = SettableClock(self.folder)
        flags = _COMPACTS if schedule.is_compacting else ()
        return Server(more_flags=flags, environment=self.clock.environment if self.clock else None)

    async def _player_settings(self, number: int, name: str, ending: AsyncExitStack) -> Settings:
        """Vary the settings of nodes: with and without a circuit breaker, over different protocols."""
        more: dict[str, Any] = {"http": True, "bind": f"127.0.0.1:{free_port()}"}
        if self.server is None:
            return self._settings(name, FILE, **more)
        link = self.links[name] = await ending.enter_async_context(Proxy(self.server.port))
        more |= {"db_url": link.url, "db_circuit_breaker": number % 3 != 1}
        case = HomeCase(Backend.SERVER, _DRIVERS[number % len(_DRIVERS)], ReplicaChoice.AUTO)
        return self._settings(name, case, **more)


@asynccontextmanager
async def open_infrastructure(schedule: Schedule) -> AsyncIterator[Infrastructure]:
    """Yield the infrastructure of a run, and remove it afterwards."""
    async with AsyncExitStack() as ending:
        folder = Path(tempfile.mkdtemp(prefix="vox-chaos-"))
        ending.callback(shutil.rmtree, folder, ignore_errors=True)
        infrastructure = Infrastructure(folder, schedule.store)
        await infrastructure.create(schedule, ending)
        yield infrastructure
