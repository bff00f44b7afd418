"""Lines on the service: how soon a node is up, and what one costs that has nothing to do."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final

import httpx

from bench.environment import BenchEnvironment
from bench.figures import Figure, Of, at_most
from tools.homes import FILE, MESH_REPLICA, HomeCase
from tools.sqld import Server

_ROOT: Final = Path(__file__).resolve().parents[2]
_BASE: Final = {
    "PYTHONPATH": str(_ROOT),
    **{name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ},
}
_COMMAND: Final = (sys.executable, "-m", "vox_mesh.cli")
_PATIENCE_S: Final = 60.0
_MINUTE_S: Final = 60.0
_SETTLED_S: Final = 3.0
"""After the start a node does what it does only once."""

_TICKS: Final = slice(11, 13)
"""Of the words that follow a process's name: its time in its own code, and in the system's."""

_METRICS_TOKEN: Final = "a-token-for-those-who-only-count"
_BEARER: Final = {"Authorization": f"Bearer {_METRICS_TOKEN}"}
_LONGER: Final = 2
_BARE: Final = "an interpreter that does nothing"
_REQUESTS: Final = re.compile(r"^vox_primary_requests_total{.*} (\S+)$", re.MULTILINE)
_UP_IN_S: Final = {FILE: 1.5, MESH_REPLICA: 2.5}


class UpNode:
    """A `vox-mesh up` that has said it is ready, as one who only measures sees it."""

    def __init__(self, pid: int, url: str, took_s: float) -> None:
        self.pid = pid
        self.took_s = took_s
        self.url = url

    async def requests(self) -> float:
        """How many requests it has sent to the primary."""
        async with httpx.AsyncClient(trust_env=False) as client:
            text = (await client.get(f"{self.url}/metrics", headers=_BEARER)).raise_for_status().text
        return sum(map(float, _REQUESTS.findall(text)))

    def cpu_s(self) -> float:
        """The CPU time that it has taken."""
        stat = Path(f"/proc/{self.pid}/stat")
        if stat.exists():  # `ps` has whole seconds here
            ticks = stat.read_text().rpartition(") ")[2].split()[_TICKS]
            return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        minutes, _, seconds = self._metric("time").rpartition(":")
        return float(seconds) + 60 * float(minutes or 0)

    def resident_mb(self) -> float:
        """The memory that it holds."""
        return int(self._metric("rss")) / 1_024

    def _metric(self, what: str) -> str:
        command = ["ps", "-o", f"{what}=", "-p", str(self.pid)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _up(home: HomeCase, folder: Path, server: Server | None) -> AbstractAsyncContextManager[UpNode]:
    return up_node(folder, _settings(home, server))


@asynccontextmanager
async def up_node(folder: Path, settings: Mapping[str, str]) -> AsyncIterator[UpNode]:
    """A node in an interpreter that is started for it; it says when it is ready as it would to systemd."""
    await asyncio.to_thread(folder.mkdir, parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        address = folder / "notify"
        manager.bind(str(address))
        manager.settimeout(_PATIENCE_S)
        environment = {**_BASE, **settings, "NOTIFY_SOCKET": str(address)}
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            *(*_COMMAND, "up", "--worker-exec"),
            cwd=folder,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            said = (await asyncio.to_thread(manager.recv, 4_096)).decode()
            took_s = time.perf_counter() - began
            found = re.search(r"http://[^)]+", said)
            if not said.startswith("READY=1") or found is None:
                raise RuntimeError(f"the node said {said!r}")
            yield UpNode(process.pid, found[0], took_s)
        finally:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _settings(home: HomeCase, server: Server | None) -> dict[str, str]:
    variables = {"VOX_MESH_ENABLED": "1", "VOX_MESH_METRICS_TOKEN": _METRICS_TOKEN}
    if home.needs_server and server is not None:
        variables |= {"VOX_DB_URL": server.url, "VOX_DB_TOKEN": server.token}
    return variables


async def _bare_start_ms() -> float:
    """The least that a new interpreter takes, with nothing to do."""
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await process.wait()
    return (time.perf_counter() - began) * 1e3


async def up(environment: BenchEnvironment) -> list[Figure]:
    """From the start of the interpreter until a node is ready, where it was before."""
    figures = []
    for home, most_s in _UP_IN_S.items():
        folders = (environment.folder / f"{home}-{number}" for number in range(environment.pace.rounds))
        took: list[float] = []
        bare: list[float] = []
        for folder in folders:
            async with _up(home, folder, environment.server) as node:
                took.append(node.took_s * 1e3)
            bare.append(await _bare_start_ms())
        name = "sqld" if home.needs_server else "file"
        what = f"{name}: from the start of `vox-mesh up` until it is ready / {_BARE}"
        figures.append(Figure(f"service-up-{name}", what, "ms", took, bare, at_most(most_s * 1e3, Of.OURS)))
    return figures


async def command(environment: BenchEnvironment) -> list[Figure]:
    """Measure `vox-mesh nodes --json` from start to end, next to a running node."""
    took: list[float] = []
    bare: list[float] = []
    folder = environment.folder / "next-to"
    async with _up(FILE, folder, None):
        for _ in range(environment.pace.rounds):
            began = time.perf_counter()
            process = await asyncio.create_subprocess_exec(
                *(*_COMMAND, "nodes", "--json"),
                cwd=folder,
                env={**_BASE, **_settings(FILE, None)},
                stdout=asyncio.subprocess.DEVNULL,
            )
            if await process.wait():
                raise RuntimeError("`vox-mesh nodes` has failed")
            took.append((time.perf_counter() - began) * 1e3)
            bare.append(await _bare_start_ms())
    what = f"file: `vox-mesh nodes --json` from start to end / {_BARE}"
    return [Figure("service-command", what, "ms", took, bare, at_most(500.0, Of.OURS))]


async def idle(environment: BenchEnvironment) -> list[Figure]:
    """What a node takes, on a server and with a replica, while nothing happens."""
    seconds = _LONGER * environment.pace.idle_s
    async with _up(MESH_REPLICA, environment.folder / "idle", environment.sqld) as node:
        await asyncio.sleep(min(_SETTLED_S, seconds))
        cpu_s, requests = node.cpu_s(), await node.requests()
        await asyncio.sleep(seconds)
        percent = (node.cpu_s() - cpu_s) / seconds * 100
        per_minute = (await node.requests() - requests) * _MINUTE_S / seconds
        resident_mb = node.resident_mb()
    return [
        Figure(f"service-idle-{name}", what, unit, [value], target=at_most(most, Of.OURS))
        for name, what, unit, value, most in (
            ("memory", "memory of an idle node", "MB", resident_mb, 80.0),
            ("cpu", "share of a core that an idle node takes", "%", percent, 1.5),
            ("requests", "requests of an idle node to the primary", "1/min", per_minute, 20.0),
        )
    ]
