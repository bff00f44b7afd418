"""The command server of a node, as the node sees it: a process that it starts, restarts and ends."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from contextlib import suppress
from typing import Final

from vox_mesh.model.base.backends import Backend
from vox_mesh.runtime.open_store import target_of
from vox_mesh.settings import Settings
from vox_mesh.store.slots import folder_of_slot

_log = logging.getLogger(__name__)

_MODULE: Final = "vox_mesh.cli.command_server.server"
_MIN_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 60.0
_STOP_S: Final = 1.0


class CommandServerProcess:
    """Keeps the command server of a node running until cancelled. Without one, commands run by themselves."""

    def __init__(self, settings: Settings, slot_name: str) -> None:
        home = settings.home_dir.resolve()
        folder = folder_of_slot(home, slot_name)
        self._arguments = json.dumps([str(home), str(folder), target_of(settings), settings.log_format])

    async def run(self) -> None:
        """Run the server; restart it after a growing pause if it ends."""
        pause_s = _MIN_PAUSE_S
        while True:
            code = await self._run_once()
            if code == 0:  # it can't listen, and has logged why
                return
            _log.warning("command server ended, restarting: code=%s pause_s=%.0f", code, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    async def _run_once(self) -> int:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", _MODULE, self._arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # signals of the node's terminal are for the node
        )
        try:
            return await process.wait()
        finally:
            await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End the server; the commands that it runs go on to their end."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
            await process.wait()


def command_server_of(settings: Settings, slot_name: str | None) -> CommandServerProcess | None:
    """Return the command server of a node, if it is to have one."""
    if not settings.command_server or settings.backend is Backend.MEMORY or slot_name is None:
        return None
    is_possible = sys.platform == "linux" and bool(sys.executable) and os.access(sys.executable, os.X_OK)
    return CommandServerProcess(settings, slot_name) if is_possible else None
