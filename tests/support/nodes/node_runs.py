"""Nodes as `vox-mesh up` runs them, in processes of their own: asked over HTTP, signalled, begun again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx
import orjson

from tools.fork_server import Program
from tools.forked import AsyncProcess, Process
from tools.homes import HomeCase, environment
from tools.sqld import Server, free_port
from vox_mesh import Settings

PATIENCE_S: Final = 60.0
TOKEN: Final = "a-token-of-these-nodes-alone"

_ROOT: Final = Path(__file__).resolve().parents[3]
_LOOK_S: Final = 0.03
_ASK_S: Final = 10.0
_COMMAND: Final = "vox_mesh.cli"


def node_settings(case: HomeCase, folder: Path, server: Server | None, name: str, **more: Any) -> Settings:
    """Settings of a node that ticks often and does not wait long, in a folder of its own as on a machine."""
    values = {
        "node_id": name,
        "scope_id": "nodes",
        "http": True,
        "bind": f"127.0.0.1:{free_port()}",
        "token": TOKEN,
        "tick": "300ms",
        "db_request_timeout": "600ms",
        "db_deadline": "1500ms",
    }
    return case.settings(folder / name, server, **(values | more))


def _variables(settings: Settings) -> dict[str, str]:
    # Without a command server, a process less for each of many nodes.
    switch = {"VOX_MESH_COMMAND_SERVER": "0"}
    return {**os.environ, "PYTHONPATH": str(_ROOT), **environment(settings), **switch}


async def ask(settings: Settings, *arguments: str) -> tuple[int, Any]:
    """Run a command with these settings, next to the nodes; its exit code, and what it tells as JSON."""
    program = Program((*arguments, "--json"), _variables(settings), module=_COMMAND)

    def run() -> tuple[int, Any]:
        with Process(program) as process:
            out, err = process.communicate(PATIENCE_S)
            code = process.wait()
        assert out, err
        return code, orjson.loads(out)

    return await asyncio.to_thread(run)


async def diagnosed(settings: Settings) -> dict[str, str]:
    """What `vox-mesh doctor` finds wrong, by the check that does."""
    _, findings = await ask(settings, "doctor")
    return {each["check"]: each["found"] for each in findings if each["state"] == "fail"}


class UpNode:
    """One `vox-mesh up`."""

    def __init__(self, settings: Settings, process: AsyncProcess, log: Path) -> None:
        assert settings.node_id is not None
        self.settings = settings
        self.name = settings.node_id
        self.process = process
        self.is_told_to_end = False
        self._log = log
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self.client = httpx.AsyncClient(
            base_url=f"http://{settings.bind}", headers=headers, timeout=_ASK_S, trust_env=False
        )

    @classmethod
    async def start(cls, settings: Settings, log: Path, *arguments: str, module: str = _COMMAND) -> UpNode:
        """Start it, without waiting; `module` is run in place of the command line."""
        program = Program(("up", *arguments), _variables(settings), module=module, folder=str(log.parent))
        with log.open("ab") as stderr:
            return cls(settings, await AsyncProcess.start(program, stderr.fileno()), log)

    @property
    def said(self) -> str:
        """All that it has logged."""
        return self._log.read_text(errors="replace")

    # --- how it is -------------------------------------------------------------------------------

    async def is_ready(self) -> bool | None:
        """What it says when it is asked whether it is ready; `None`: it does not answer."""
        try:
            answer = await self.client.get("/readyz")
        except httpx.TransportError:
            return None
        assert answer.json() == {"ready": answer.status_code == HTTPStatus.OK}
        return answer.status_code == HTTPStatus.OK

    async def faults(self) -> dict[str, str]:
        """What it says is wrong with it, by the name of the check."""
        checks = (await self.client.get("/readyz?verbose")).json()["checks"]
        return {each["name"]: each["detail"] for each in checks if not each["ok"]}

    async def lives(self) -> bool:
        """Whether it says so."""
        try:
            answer = await self.client.get("/livez")
        except httpx.TransportError as error:
            raise AssertionError(f"{self.name} does not answer: {error!r}\n{self.said[-3_000:]}") from None
        return bool(answer.status_code == HTTPStatus.OK)

    async def until_ready(self) -> None:
        """Wait until it is of use."""
        await self._until(self.is_ready, "it was never ready")

    async def until_ill(self, check: str) -> dict[str, str]:
        """Wait until it says that something is wrong there; all that is. Meanwhile and then it lives."""
        found: dict[str, str] = {}

        async def is_ill() -> bool:
            nonlocal found
            assert await self.lives()
            found = await self.faults()
            return check in found

        await self._until(is_ill, f"nothing was wrong with {check}")
        assert await self.is_ready() is False
        return found

    async def _until(self, condition: Callable[[], Any], otherwise: str) -> None:
        """Look until it is so: it is another process, which sends no event."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not await condition():
                    assert self.process.returncode is None, f"it has ended:\n{self.said[-3_000:]}"
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise AssertionError(f"{self.name}: {otherwise}\n{self.said[-3_000:]}") from None

    async def post(self, path: str, body: Any) -> httpx.Response:
        """Tell it something over HTTP."""
        return await self.client.post(
            path, content=orjson.dumps(body), headers={"Content-Type": "application/json"}
        )

    async def metric(self, name: str) -> float:
        """A sample of its `/metrics`, with its labels in the name; 0 if it has none."""
        text = (await self.client.get("/metrics")).text
        return next(
            (float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{name} ")), 0.0
        )

    # --- its end ---------------------------------------------------------------------------------

    async def ended(self) -> int:
        """Wait for its end; the exit code."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.process.wait()

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """Send it a signal, and wait for its end."""
        self.is_told_to_end = True
        self.process.send_signal(number)
        return await self.ended()

    async def close(self) -> None:
        """Leave nothing of it."""
        self.process.kill()
        await self.process.wait()
        await self.client.aclose()


class Machines:
    """Nodes on machines of their own: each has its folder, and may be begun again there."""

    def __init__(self, folder: Path) -> None:
        self.nodes: dict[str, UpNode] = {}
        self._folder = folder
        self._stack = AsyncExitStack()

    async def up(self, settings: Settings, *arguments: str, module: str = _COMMAND) -> UpNode:
        """Begin a node, or begin it again."""
        log = self._folder / f"{settings.node_id}.log"
        node = await UpNode.start(settings, log, *arguments, module=module)
        self._stack.push_async_callback(node.close)
        self.nodes[node.name] = node
        return node

    async def ready(self, settings: Settings, *arguments: str, module: str = _COMMAND) -> UpNode:
        """The same, and wait until it is ready."""
        node = await self.up(settings, *arguments, module=module)
        await node.until_ready()
        return node

    async def close(self) -> None:
        """Leave no process behind."""
        await self._stack.aclose()


@asynccontextmanager
async def machines(folder: Path) -> AsyncIterator[Machines]:
    """Some machines; whatever becomes of the test, nothing runs on them at the end."""
    here = Machines(folder)
    try:
        yield here
    finally:
        await here.close()
