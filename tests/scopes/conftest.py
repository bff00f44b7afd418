"""Four real servers, each with the database of one scope."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tools.sqld import Server
from vox_mesh import Settings
from vox_mesh.node import MeshNode
from vox_mesh.settings import load_process_settings

SCOPES: Final = ("west", "east", "north", "south")


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Server]]:
    """A server for each scope."""
    running = {scope: Server() for scope in SCOPES}
    try:
        for server in running.values():
            server.launch()
        for server in running.values():
            server.wait_until_healthy()
        yield running
    finally:
        for server in running.values():
            server.stop()


@pytest.fixture
def on_servers(servers: dict[str, Server], tmp_path: Path) -> Settings:
    """The settings of a process that may serve all four; its meshes are of the test alone."""
    lines = ["# scopes of the test"]
    for scope, server in servers.items():
        token = tmp_path / f"{scope}.token"
        token.write_text(server.token)
        lines.append(f"{scope}={server.url},{token.name}")
    directory = tmp_path / "scopes"
    directory.write_text("\n".join(lines))
    return process_settings(tmp_path, str(directory))


@pytest.fixture
def on_files(tmp_path: Path) -> Settings:
    """The settings of a process with two scopes, each in a file."""
    urls = " ".join(f"{scope}=file:{tmp_path / scope}.db" for scope in SCOPES[:2])
    return process_settings(tmp_path, urls)


async def settle(*meshes: MeshNode) -> None:
    """Wait until each node is the owner of its mesh: a slow server may take longer than the first tick."""
    for mesh in meshes:
        async for _ in mesh.store.changes(interval_s=0.05):
            if mesh.writer.is_chain_open and await mesh.ownership.owner() is not None:
                break


def process_settings(folder: Path, urls: str) -> Settings:
    """Return settings with this directory of scopes."""
    return load_process_settings(
        _env_file=None,
        db_urls=urls,
        home_dir=folder / "vox",
        repository_id=f"repo-{folder.name}"[:64],
        http=False,
        db_replica="off",
        tick="50ms",
    )
