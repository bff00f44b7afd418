"""The doctor tells apart whether hooks are registered, trusted and answered."""

from __future__ import annotations

from tests.cli.conftest import VoxCommand


def _finding(vox: VoxCommand) -> tuple[str, str]:
    found = {each["check"]: each for each in vox("doctor", "--json").document}["hooks"]
    return found["state"], found["found"]


def test_the_doctor_names_why_hooks_do_not_work(vox: VoxCommand) -> None:
    (vox.folder / "home").mkdir()
    vox = vox.having(HOME=str(vox.folder / "home"))
    assert vox("db", "init").code == 0
    state, found = _finding(vox)
    assert state == "ok"
    assert found.startswith("not registered")
    assert vox("hooks", "install", "codex").code == 0
    assert _finding(vox) == ("warn", "codex: not trusted: the host skips them")
    assert vox("hooks", "install", "gemini").code == 0
    assert "gemini: not answering: no node listens" in _finding(vox)[1]
