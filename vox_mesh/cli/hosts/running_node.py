"""The node that a pipe connects to: the one that runs here or is set, or else one in this process."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import httpx

from vox_mesh.client.connection import transport_of
from vox_mesh.errors import MeshError, NoAnswer
from vox_mesh.nodes.node_sockets import FILE, find_served_socket, is_served
from vox_mesh.store.slots import folder_of_slot

if TYPE_CHECKING:
    from vox_mesh.settings import Settings

_log = logging.getLogger(__name__)

_CONNECT_S: Final = 5.0
_READ_S: Final = 120.0
"""Longer than any tool waits, and than streams are silent."""

_TIMEOUT: Final = httpx.Timeout(_READ_S, connect=_CONNECT_S)


class RunningNode:
    """Finds a running node each time it is asked to; starts one if there is none."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._task: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[tuple[str, dict[str, str]]] | None = None
        self._is_ended = asyncio.Event()

    async def connect(self) -> httpx.AsyncClient:
        """Return a client of a node. Raises an error of the mesh if none runs and none can be started."""
        if self._settings.node is not None:
            return _client_of(self._settings.node.partition("#")[0])
        if self._task is None or self._task.done():
            self._opened = None  # of a node that could not be started, or has ended
            if (found := await asyncio.to_thread(find_served_socket, self._settings.home_dir)) is not None:
                return _client_of(f"unix:{found}")
        return _client_of(*await self._start())

    async def _start(self) -> tuple[str, dict[str, str]]:
        """Start a node in this process; return its address, and the headers that it needs."""
        if self._opened is None:
            _log.info("no node runs here: starting one")
            self._opened = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run(self._opened), name="vox-mesh-own-node")
        return await asyncio.shield(self._opened)

    async def _run(self, opened: asyncio.Future[tuple[str, dict[str, str]]]) -> None:
        from vox_mesh.mesh import Mesh  # imported late: most often a node runs already
        from vox_mesh.nodes.home_token import load_or_create_token
        from vox_mesh.settings import load_settings
        from vox_mesh.settings.process import deny_inspection

        deny_inspection()  # its key is in its memory
        settings = load_settings()
        try:
            async with Mesh.open(settings) as mesh:
                folder = folder_of_slot(settings.home_dir, mesh.store.slot_name or "")
                if await asyncio.to_thread(is_served, socket := folder.absolute() / FILE):
                    opened.set_result((f"unix:{socket}", {}))
                elif mesh.presence.url is not None:
                    token = settings.token and settings.token.get_secret_value()
                    token = token or load_or_create_token(settings.home_dir)
                    opened.set_result((mesh.presence.url, {"Authorization": f"Bearer {token}"}))
                else:
                    raise NoAnswer("node has no service", hint="unset VOX_MESH_HTTP, or start `vox-mesh up`")
                await self._is_ended.wait()
                mesh.begin_to_leave()
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(_not_started(error))

    async def stop(self) -> None:
        """Stop the node of this process, if there is one."""
        self._is_ended.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)


def _not_started(error: Exception) -> MeshError:
    if isinstance(error, MeshError):
        return error
    _log.error("node not started", exc_info=error)
    return NoAnswer(f"node can't be started: {type(error).__name__}", hint="start one with `vox-mesh up`")


def _client_of(address: str, headers: dict[str, str] | None = None) -> httpx.AsyncClient:
    transport, base = transport_of(address)
    return httpx.AsyncClient(
        base_url=base, headers=headers, transport=transport, timeout=_TIMEOUT, trust_env=False
    )
