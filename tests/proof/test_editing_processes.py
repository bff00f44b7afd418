"""Processes of a run of edits: one that ends too early says why, a killed one leaves nothing running."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import pytest

from proof.editing.processes import AgentProcess
from proof.editing.spec import UP, AgentSpec

_PATIENCE_S: Final = 60.0
_ROOT: Final = Path(__file__).resolve().parents[2]
_PROGRAM: Final = """
import sys
print("\\n".join(f"line {number}" for number in range(1_000)), file=sys.stderr)
sys.exit("no node at this address")
"""

_BEGINS: Final = """
import subprocess
from proof.chaos.protocol import report
from proof.editing.spec import UP
with subprocess.Popen("cat pipe > ended", shell=True, cwd={folder!r}, stdout=subprocess.DEVNULL):
    report(UP)
"""


async def test_an_agent_that_ends_early_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "ends_early.py").write_text(_PROGRAM)
    agent = await _started("ends_early", tmp_path)
    with pytest.raises(RuntimeError) as failure:
        async with asyncio.timeout(_PATIENCE_S):
            await agent.until_ever(UP)
    first, *_, last = str(failure.value).splitlines()
    assert first.startswith("ann ended with 1 before it was up: line 9")
    assert last == "no node at this address"


async def test_a_killed_agent_is_gone_once_the_command_that_it_began_has_ended(tmp_path: Path) -> None:
    (tmp_path / "begins.py").write_text(_BEGINS.format(folder=str(tmp_path)))
    os.mkfifo(tmp_path / "pipe")
    agent = await _started("begins", tmp_path)
    async with asyncio.timeout(_PATIENCE_S):
        await agent.until_ever(UP)
        killing = asyncio.create_task(agent.kill())
        with (tmp_path / "pipe").open("w") as pipe:  # opens once the command reads
            with pytest.raises(RuntimeError, match="ann ended with -9"):
                await agent.until("never")
            assert not killing.done()
            pipe.write("whole")
        await killing
    assert (tmp_path / "ended").read_text() == "whole"


async def _started(module: str, folder: Path) -> AgentProcess:
    spec = AgentSpec("ann", 1, 7, str(folder), str(folder), "http://127.0.0.1:1", (), 0.1)
    path = os.pathsep.join((str(folder), str(_ROOT)))
    return await AgentProcess.start(module, spec, {"PYTHONPATH": path}, folder)
