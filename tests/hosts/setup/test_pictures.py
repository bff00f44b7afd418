"""The pictures of hosts in the documentation show what a setup does now."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import VoxCommand
from tests.support.running.repositories import GIT_SETTINGS, new_repository
from tools.host_pictures import text_of
from tools.pictures import FOLDER
from vox_mesh.hosts.setup.host_paths import HOSTS


@pytest.mark.parametrize("host", HOSTS)
def test_a_picture_shows_all_files_of_the_setup_and_a_denied_edit(host: str, tmp_path: Path) -> None:
    vox = VoxCommand(tmp_path / "project", **GIT_SETTINGS, HOME=str(tmp_path))
    new_repository(vox.folder, vox.environment)
    parts = vox("setup", host, "--check", "--json").document
    shown = text_of((FOLDER / f"host-{host}.svg").read_text())
    assert f"$ vox-mesh setup {host}" in shown
    assert [each["where"] for each in parts if each["where"] not in shown] == [], (
        "run: python -m tools.host_pictures"
    )
    assert "denied this edit" in shown
    assert 'lock of agent "reviewer"' in shown
