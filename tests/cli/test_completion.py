"""The completion of commands by shells: the scripts, the words, and that nothing else is ever printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import VoxCommand
from vox_mesh.cli import app
from vox_mesh.cli.support import COMPLETE

_SHELLS = ("bash", "zsh", "fish")


def asked(vox: VoxCommand, line: str, shell: str = "bash") -> list[str]:
    """The completions that a shell gets for a line whose last word is being typed."""
    words = line.split(" ")
    shown = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    if shell == "fish":
        shown["COMP_CWORD"] = words[-1]
    ended = vox.having(**{COMPLETE: f"{shell}_complete"}, **shown)()
    assert (ended.code, ended.err) == (0, "")
    return [line for line in ended.out.splitlines() if line]


@pytest.mark.parametrize("shell", _SHELLS)
def test_there_is_a_script_for_each_shell_that_the_shell_can_read(vox: VoxCommand, shell: str) -> None:
    ended = vox("completion", shell)
    assert (ended.code, ended.err) == (0, "")
    assert f"{COMPLETE}={shell}_complete" in ended.out
    if path := shutil.which(shell):
        read = subprocess.run([path, "-n"], input=ended.out, text=True, capture_output=True, timeout=60)
        assert (read.returncode, read.stderr) == (0, "")


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_completes_what_is_being_typed(vox: VoxCommand, tmp_path: Path) -> None:
    typed = 'COMP_WORDS=(vox-mesh loc); COMP_CWORD=1; _vox_mesh_completion vox-mesh; echo "${COMPREPLY[@]}"'
    ended = subprocess.run(
        ["bash", "-c", f'eval "$(vox-mesh completion bash)" && {typed}'],
        env=vox.environment | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "not supported" in ended.stderr or "nosort" in ended.stderr:
        pytest.skip("this bash is older than completion is")
    assert (ended.stdout, ended.stderr) == ("lock\n", "")


def test_nouns_verbs_options_and_choices_are_completed(memory: VoxCommand) -> None:
    assert asked(memory, "vox-mesh conf") == ["plain,config", "plain,conflicts"]
    assert asked(memory, "vox-mesh lock re") == ["plain,release", "plain,renew"]
    assert asked(memory, "vox-mesh lock acquire --wa") == ["plain,--wait"]
    assert asked(memory, "vox-mesh conflicts resolve --take m") == ["plain,merge"]
    assert asked(memory, "vox-mesh completion z") == ["plain,zsh"]
    assert asked(memory, "vox-mesh nonsense x") == []
    assert {line.partition(",")[2] for line in asked(memory, "vox-mesh ")} == set(app._COMMANDS)


def test_the_other_shells_are_notified_what_a_verb_does_too(memory: VoxCommand) -> None:
    kind, verb, about = asked(memory, "vox-mesh lock ren", "zsh")
    assert (kind, verb) == ("plain", "renew")
    (line,) = asked(memory, "vox-mesh lock ren", "fish")
    assert re.split(r"[,\t]", line, maxsplit=2)[:2] == ["plain", "renew"]
    assert about in line


@pytest.mark.parametrize(
    "variables",
    [
        {COMPLETE: "bash_nonsense"},
        {COMPLETE: "tcsh_complete", "COMP_WORDS": "vox-mesh ", "COMP_CWORD": "1"},
        {COMPLETE: ""},
        {COMPLETE: "bash_complete"},
        {COMPLETE: "bash_complete", "COMP_WORDS": "vox-mesh ", "COMP_CWORD": "many"},
        {COMPLETE: "zsh_complete", "COMP_WORDS": "vox-mesh ", "COMP_CWORD": "-7000"},
    ],
    ids=str,
)
def test_a_shell_that_asks_for_nonsense_is_given_nothing(
    memory: VoxCommand, variables: dict[str, str]
) -> None:
    ended = memory.having(**variables)()
    assert ended.err == ""
    assert "Traceback" not in ended.out


def test_bad_settings_and_quotes_that_are_not_closed_do_not_disturb_anyone_who_types(
    memory: VoxCommand,
) -> None:
    broken = memory.having(VOX_MESH_ENABLED="perhaps", VOX_DB_URL="gopher://example")
    assert asked(broken, "vox-mesh db sta") == ["plain,stats", "plain,status"]
    assert asked(broken, "vox-mesh send reviewer 'it --pri") == []
    assert asked(broken, 'vox-mesh send "re') == []


def test_nouns_are_completed_without_loading_any_of_their_commands(memory: VoxCommand) -> None:
    shown = {COMPLETE: "bash_complete", "COMP_WORDS": "vox-mesh no", "COMP_CWORD": "1"}
    ended = memory.having(**shown)(python=("-X", "importtime"))
    assert ended.out == "plain,nodes\n"
    assert "vox_mesh.cli.app" in ended.err  # the list of imports
    assert not [name for name in ("pydantic", "asyncio", "vox_mesh.mesh") if name in ended.err]
