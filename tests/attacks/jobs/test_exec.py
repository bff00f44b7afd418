"""The list of allowed commands of a worker can't be bypassed by variables, arguments or paths."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.running.confined import RealVox
from vox_mesh import Manifest
from vox_mesh.errors import BadSettings
from vox_mesh.jobs.exec.allow_list import parse_entries
from vox_mesh.jobs.exec.policy import CommandRefused, ExecPolicy

_OFF: Final = {"VOX_WORKER_EXEC_SANDBOX": "off"}


def exploits(folder: Path) -> dict[str, dict[str, Any]]:
    """Jobs that run `touch` through an allowed program; each is named after its trick."""
    for name in ("evil.sh", "evil/uname", "evil/browser"):
        script = folder / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f"#!/bin/sh\n/usr/bin/touch {folder}/pwned-by-{script.stem}\n")
        script.chmod(0o755)
    touch = f"/usr/bin/touch {folder}/pwned-by-"
    perl = f"-Mbase;system(q(/usr/bin/touch),q({folder}/pwned-by-perl))"
    warnings = "all:0:antigravity.x:0:0"  # it imports a module, which starts $BROWSER
    found: dict[str, dict[str, Any]] = {
        "BASH_ENV": {"command": ["bash", "/dev/null"], "env": {"BASH_ENV": f"{folder}/evil.sh"}},
        "BASH_FUNC": {
            "command": ["bash", f"{folder}/harmless.sh"],
            "env": {"BASH_FUNC_echo%%": f"() {{ {touch}function; }}"},
        },
        "PERL5OPT": {"command": ["perl", "/dev/null"], "env": {"PERL5OPT": perl}},
        "PATH": {"command": ["bash", f"{folder}/harmless.sh"], "env": {"PATH": f"{folder}/evil"}},
        "LD_PRELOAD": {"command": ["true"], "env": {"LD_PRELOAD": f"{folder}/evil.so"}},
        "PYTHONWARNINGS": {
            "command": ["python3", "/dev/null"],
            "env": {"PYTHONWARNINGS": warnings, "BROWSER": f"{folder}/evil/browser"},
        },
        "git alias": {"command": ["git", "-c", f"alias.x=!{touch}git", "x"]},
        "git variable": {
            "command": ["git", "status"],
            "env": {
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": "core.fsmonitor",
                "GIT_CONFIG_VALUE_0": f"{folder}/evil.sh",
            },
        },
        "shell": {"command": ["bash", "-c", f"{touch}shell"]},
        "python": {"command": ["python3", "-c", f"open('{folder}/pwned-by-python', 'w')"]},
        "env": {"command": ["env", "touch", f"{folder}/pwned-by-env"]},
        "option": {"command": ["git", "fetch", f"--upload-pack={touch}upload"]},
    }
    (folder / "harmless.sh").write_text("uname >/dev/null; echo hello\n")
    return found


def test_no_trick_gets_past_the_list_of_allowed_commands(tmp_path: Path) -> None:
    tricks = exploits(tmp_path)
    patterned = "git fetch *" if shutil.which("git") else "true"
    allow = f"bash,perl,true,python3,git status,env,{patterned},GREETING=hel* /bin/echo hello *"
    honest: list[dict[str, Any]] = [
        {"command": ["echo", "hello", "world"], "env": {"GREETING": "hello"}},
        {"command": ["bash", f"{tmp_path}/harmless.sh"]},
    ]
    wrong: list[dict[str, Any]] = [
        {"command": ["echo", "hello", "-e"]},
        {"command": ["echo", "bye", "world"]},
        {"command": ["echo", "hello", "world"], "env": {"GREETING": "bye"}},
        {"command": ["echo", "hello", "world"], "env": {"OTHER": "x"}},
        {"command": ["echo", "hello", "world"], "env_from": {"OTHER": "SECRET"}},
    ]
    jobs = [*tricks.values(), *wrong, *honest]
    manifests = [Manifest.of(timeout=30, max_attempts=1, **each) for each in jobs]
    endings, _ = RealVox(tmp_path, _OFF).attempt_all(manifests, "--exec-allow", allow)
    assert sorted(path.name for path in tmp_path.glob("pwned*")) == []
    refused, allowed = endings[: -len(honest)], endings[-len(honest) :]
    for job, end in zip(jobs, refused, strict=False):
        assert (end.job.state, end.printed) == ("failed", ""), job
        assert "VOX_WORKER_EXEC_ALLOW" in str(end.job.reason) or "PATH" in str(end.job.reason), job
    assert [(end.job.state, end.printed) for end in allowed] == [
        ("succeeded", "hello world\n"),
        ("succeeded", "hello\n"),
    ]


_PROGRAM: Final = Path("/usr/bin/tool")


@pytest.mark.parametrize(
    ("entry", "arguments", "is_allowed"),
    [
        ("tool", (), True),
        ("tool", ("--any", "thing"), True),
        ("tool a", ("a",), True),
        ("tool a", (), False),
        ("tool a", ("a", "b"), False),
        ("tool a *", ("a", "b c"), True),
        ("tool a *", ("a", "-b"), False),
        ("tool a -?", ("a", "-b"), True),
        ("tool a ...", ("a", "-b", "c"), True),
        ("tool a ...", ("b",), False),
        ("tool ...", ("-c", "x"), True),
        ("tool '* *'", ("a b",), True),
        ("tool --out=*", ("--out=/x",), True),
        ("bash", ("script.sh", "-c"), True),
        ("bash", ("-c", "x"), False),
        ("bash", ("+c", "x"), False),
        ("bash ...", ("-c", "x"), True),
        ("python3.11", ("-c", "x"), False),
        ("git", ("log", "--oneline"), True),
        ("git", ("-c", "alias.x=!sh", "x"), False),
        ("env", ("sh",), False),
        ("env", (), True),
    ],
)
def test_arguments_match_the_patterns_of_their_entry(
    entry: str, arguments: tuple[str, ...], is_allowed: bool
) -> None:
    [parsed] = parse_entries(entry)
    assert (parsed.argument_fault(arguments, _PROGRAM) is None) is is_allowed


def test_a_link_to_an_interpreter_is_the_interpreter(tmp_path: Path) -> None:
    (tmp_path / "tool").symlink_to("/bin/bash")
    policy = ExecPolicy.parsed(str(tmp_path / "tool"))
    with pytest.raises(CommandRefused, match="options of"):
        policy.permit(tmp_path / "tool", ("-c", "id"), {})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("PATH=* true", "PATH can't be allowed"),
        ("LD_PRELOAD=* true", "LD_PRELOAD can't be allowed"),
        ("A=*", "must be a name or an absolute path, got ''"),
        ("true ... a", "must be the last word"),
        ("true 'a", "can't be split into words"),
        ("bin/tool a", "must be a name or an absolute path, got 'bin/tool'"),
    ],
)
def test_an_entry_that_can_t_be_used_is_refused(text: str, fault: str) -> None:
    with pytest.raises(BadSettings, match=fault):
        ExecPolicy.parsed(text)


def test_doctor_names_the_entries_that_allow_any_command(tmp_path: Path) -> None:
    vox = RealVox(
        tmp_path, {"VOX_WORKER_EXEC": "1", "VOX_WORKER_EXEC_ALLOW": "true,bash ...,git status", **_OFF}
    )
    checks = {each["check"]: each for each in json.loads(vox("doctor", "--json").stdout)}
    assert checks["exec_allow"]["state"] == "warn"
    assert checks["exec_allow"]["found"] == "allows any command: bash ..."
