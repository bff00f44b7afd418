"""From an empty machine to a denied edit, by one command."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.project.test_wheel import wheel  # noqa: F401 - a fixture
from tools.five_minutes import drive


@pytest.mark.soak
def test_setup_from_an_installed_wheel_ends_in_a_denied_edit(wheel: Path) -> None:  # noqa: F811 - the fixture
    """In `make soak` all dependencies are installed, too; else they are those of this environment."""
    with tempfile.TemporaryDirectory(prefix="vox-") as short:  # a socket's path has at most 107 bytes
        machine = drive(Path(short) / "machine", offline=not os.environ.get("VOX_SOAK"), wheel=wheel)
        assert "the edit is denied" in machine.seconds
        assert not (machine.project / ".claude").exists(), "everything is taken back"
        assert (machine.project / ".vox" / "mesh.json").exists()
