"""The start of commands: short ones load only what they need."""

from __future__ import annotations

import re
import subprocess
from typing import Final

import pytest

from tests.cli.conftest import VoxCommand

_IMPORTED: Final = re.compile(r"^import time: .*\| +(\S+)$", re.MULTILINE)
_SLOW: Final = (
    *("pydantic", "pydantic_settings", "dotenv", "yaml", "aiohttp", "httpx", "uvloop", "psutil", "cronsim"),
    *("prometheus_client", "opentelemetry", "tenacity", "pybreaker", "textual", "rich", "statistics"),
    *("importlib.metadata", "tempfile", "vox_mesh.node", "vox_mesh.http", "vox_mesh.cli.top", "vox_mesh.occ"),
    *("vox_mesh.jobs", "vox_mesh.rhythm", "vox_mesh.model.rhythm", "vox_mesh.model.documents"),
    *("vox_mesh.store.spool", "vox_mesh.store.engines.hrana"),
)
"""Packages and modules that no short command on a file needs."""
_LOCKS: Final = (*_SLOW, "cryptography", "vox_mesh.messages", "vox_mesh.oplog.oplog")

_HOT: Final = {
    "lock acquire": (("lock", "acquire", "file:a.txt", "--agent", "coder"), _LOCKS),
    "guard check": (("guard", "check", "a.txt", "--agent", "coder"), _LOCKS),
    "send": (("send", "reviewer", "hello", "--from", "coder"), (*_SLOW, "vox_mesh.locks")),
    "nodes": (("nodes", "--json"), (*_SLOW, "cryptography", "vox_mesh.messages", "vox_mesh.locks")),
}


def _imported(err: str) -> set[str]:
    """Return the modules in the list that `-X importtime` writes, and the packages they are in."""
    split = (name.split(".") for name in _IMPORTED.findall(err))
    return {".".join(parts[:end]) for parts in split for end in range(1, len(parts) + 1)}


@pytest.mark.parametrize("command", _HOT)
def test_a_short_command_loads_only_what_it_needs(memory: VoxCommand, command: str) -> None:
    arguments, absent = _HOT[command]
    vox = memory.having(VOX_MESH_ENABLED="1")  # without a secret: those are read by pydantic
    subprocess.run(["git", "init", "--quiet", vox.folder], check=True)
    assert vox("db", "init").code == 0
    assert vox("lock", "acquire", "task:first", "--agent", "coder").code == 0  # creates the key
    ended = vox(*arguments, python=("-X", "importtime"))
    assert ended.code == 0, ended
    imported = _imported(ended.err)
    assert "vox_mesh.store.engines.file" in imported
    assert imported.isdisjoint(absent), sorted(imported.intersection(absent))


def test_the_help_loads_no_command(memory: VoxCommand) -> None:
    ended = memory("--help", python=("-X", "importtime"))
    assert ended.code == 0
    assert "Acquire, renew, release, list and break locks" in ended.out
    absent = (*_LOCKS, "asyncio", "vox_mesh.store", "vox_mesh.cli.locks", "vox_mesh.cli.support.session")
    imported = _imported(ended.err)
    assert imported.isdisjoint(absent), sorted(imported.intersection(absent))
