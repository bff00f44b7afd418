"""Real hosts with our hooks, and a scripted model. They are tried if a variable names their binary."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.cli.conftest import VoxCommand
from tests.cli.hosts.scripted_model import scripted_model
from tests.support.running.repositories import GIT_SETTINGS

_VARIABLES: Final = {
    "claude": "VOX_TEST_CLAUDE",  # npm: @anthropic-ai/claude-code
    "codex": "VOX_TEST_CODEX",  # npm: @openai/codex
    "gemini": "VOX_TEST_GEMINI",  # npm: @google/gemini-cli
}
_ARGUMENTS: Final = {
    "claude": ("-p", "write the file", "--permission-mode", "acceptEdits"),
    # The hooks are those of this test, in a configuration of its own: no person can trust them by hand.
    "codex": ("exec", "--sandbox", "workspace-write", "--dangerously-bypass-hook-trust", "write the file"),
    "gemini": ("-m", "gemini-2.5-flash", "--approval-mode", "auto_edit", "-p", "write the file"),
}
_PATIENCE_S: Final = 150.0


def _variables(home: Path, folder: Path, url: str) -> dict[str, str]:
    """Have each host ask the scripted model, and nothing else."""
    (home / ".codex").mkdir(exist_ok=True)
    (home / ".codex" / "config.toml").write_text(
        'model = "scripted"\nmodel_provider = "scripted"\n[model_providers.scripted]\nname = "scripted"\n'
        f'base_url = "{url}/v1"\nwire_api = "responses"\n'
        f'[projects."{folder}"]\ntrust_level = "trusted"\n'
    )
    (home / ".gemini").mkdir(exist_ok=True)
    chosen = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
    (home / ".gemini" / "settings.json").write_text(json.dumps(chosen))
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "GOOGLE_GEMINI_BASE_URL": url,
        "GEMINI_API_KEY": "none",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    }


@pytest.mark.parametrize("host", sorted(_VARIABLES))
def test_a_real_host_does_not_write_a_file_that_another_agent_holds(
    host: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    binary = os.environ.get(_VARIABLES[host])
    if not binary:
        pytest.skip(f"{_VARIABLES[host]} is not set")
    folder = tmp_path_factory.mktemp("r").resolve()
    (folder / "home").mkdir()
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    vox = VoxCommand(folder, HOME=str(folder / "home"), **GIT_SETTINGS)
    assert vox("init", "--no-recovery-key").code == 0
    assert vox("hooks", "install", host, "--agent", "coder").code == 0
    with vox.running("up") as node, scripted_model(str(folder / "held.txt")) as model:
        assert node.stderr is not None
        next(line for line in node.stderr if "node up: " in line)
        assert vox("lock", "acquire", "file:held.txt", "--agent", "other").code == 0
        subprocess.run(
            [binary, *_ARGUMENTS[host]],
            cwd=folder,
            env=vox.environment | _variables(folder / "home", folder, model.url),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_S,
        )
    assert not (folder / "held.txt").exists()
    assert "vox-mesh denied this edit" in model.last_asked
