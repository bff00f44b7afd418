"""The systemd units: systemd takes them, finds them well closed, and they fit the programs that they run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.deploy import command_lines
from tests.deploy.files import DEPLOY, ROOT
from vox_mesh.settings.secrets import SECRET_VARIABLES

_NODE: Final = DEPLOY / "systemd" / "vox-mesh@.service"
_SERVER: Final = DEPLOY / "sqld" / "sqld.service"
_VERIFY: Final = DEPLOY / "systemd" / "vox-mesh-verify@.service"
_TIMER: Final = DEPLOY / "systemd" / "vox-mesh-verify@.timer"
_UNITS: Final = (_NODE, _SERVER)
_PROGRAMS: Final = {
    "/opt/vox-mesh/bin/vox-mesh": str(Path(sys.executable).with_name("vox-mesh")),
    "/opt/vox-mesh/bin/python": sys.executable,
    "/usr/local/lib/sqld/start.sh": str(DEPLOY / "sqld" / "start.sh"),
}
_EXPOSURE: Final = 20
"""Of 100; what systemd calls OK ends at 50."""

_TIMEOUT_S: Final = 60
with_systemd: Final = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is not installed"
)


def options(unit: Path) -> dict[str, list[str]]:
    """All options of a unit, whatever the section."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^([A-Za-z]+)=(.*)$", unit.read_text(), re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


def installed(unit: Path, folder: Path) -> Path:
    """The unit with the programs where they are on this machine; a template as one of its instances."""
    text = unit.read_text()
    for there, here in _PROGRAMS.items():
        text = text.replace(there, here)
    path = folder / unit.name.replace("@.", "@builder-1.")
    path.write_text(text)
    return path


@with_systemd
@pytest.mark.parametrize("unit", [*_UNITS, _VERIFY], ids=lambda unit: unit.name)
def test_systemd_has_nothing_to_say_against_a_unit(unit: Path, tmp_path: Path) -> None:
    path = installed(unit, tmp_path)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, timeout=_TIMEOUT_S
    )
    complaints = [line for line in done.stderr.splitlines() if path.name in line]
    assert not complaints
    assert done.returncode == 0, done.stderr
    # And it would say so.
    path.write_text(path.read_text().replace("NoNewPrivileges=yes", "NoNewPrivileges=perhaps"))
    again = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=60)
    assert "perhaps" in again.stderr


@with_systemd
@pytest.mark.parametrize("unit", [*_UNITS, _VERIFY], ids=lambda unit: unit.name)
def test_a_unit_is_well_closed(unit: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=yes", f"--threshold={_EXPOSURE}", "--no-pager"]
    done = subprocess.run([*command, unit], capture_output=True, text=True, timeout=_TIMEOUT_S)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd can't judge a unit that is not installed")
    assert done.returncode == 0, done.stdout.splitlines()[-1:]


@pytest.mark.parametrize("unit", _UNITS, ids=lambda unit: unit.name)
def test_a_unit_runs_as_a_user_of_its_own_and_writes_in_its_own_folder_alone(unit: Path) -> None:
    found = options(unit)
    assert found["User"] != ["root"]
    assert found["NoNewPrivileges"] == ["yes"]
    assert found["ProtectSystem"] == ["strict"]
    assert found["WorkingDirectory"] == [f"/var/lib/{found['StateDirectory'][0]}"]
    assert found["UMask"] == ["0077"]
    assert found["RestartPreventExitStatus"] == ["2"]


def test_the_unit_of_a_node_gives_it_the_time_that_it_needs() -> None:
    found = options(_NODE)
    assert found["Type"] == ["notify"]
    assert 10 < int(found["TimeoutStopSec"][0]) <= 20
    assert int(found["WatchdogSec"][0]) > 0
    assert found["KillMode"] == ["mixed"]


def test_the_unit_of_a_node_runs_a_command_that_there_is() -> None:
    [line] = options(_NODE)["ExecStart"]
    program, *arguments = line.removesuffix(" $OPTIONS").split()
    assert program in _PROGRAMS
    command_lines.check(arguments)


def test_the_timer_runs_the_script_of_the_page_every_night() -> None:
    [line] = options(_VERIFY)["ExecStart"]
    program, script = line.split()
    assert program in _PROGRAMS
    page = (ROOT / "docs" / "guides" / "operations.md").read_text()
    assert f" deploy/verify_log.py {script}\n" in page
    assert f"enable --now {_TIMER.name.replace('@', '@builder-1')}" in page
    assert _TIMER.stem == _VERIFY.stem
    assert options(_TIMER)["OnCalendar"] == ["*-*-* 03:30:00"]
    assert options(_TIMER)["Persistent"] == ["yes"]
    assert options(_VERIFY)["DynamicUser"] == ["yes"]


def test_the_verification_gets_the_read_only_token_and_no_other() -> None:
    found = options(_VERIFY)
    assert found["LoadCredential"] == ["VOX_MESH_READ_TOKEN:/etc/vox-mesh/secrets/read-token"]
    assert found["EnvironmentFile"] == ["/etc/vox-mesh/%i.env"]
    assert "TOKEN=" not in (DEPLOY / "systemd" / "common.env").read_text()
    given = [each.partition(":") for each in options(_NODE)["LoadCredential"]]
    not_of_nodes = {"TURSO_AUTH_TOKEN", "VOX_AGENT_TOKEN", "VOX_ARCHIVE_SECRET", "VOX_BACKUP_SECRET"}
    assert {name for name, _, _ in given} == {*SECRET_VARIABLES} - not_of_nodes
    page = (ROOT / "docs" / "guides" / "operations.md").read_text()
    for _, _, path in given:
        assert f"install -m 0600 /dev/stdin {path}\n" in page


@with_systemd
def test_systemd_has_nothing_to_say_against_the_timer(tmp_path: Path) -> None:
    installed(_VERIFY, tmp_path)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", installed(_TIMER, tmp_path)],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr


def test_the_server_is_notified_by_its_environment_file_what_the_script_reads() -> None:
    script = (DEPLOY / "sqld" / "start.sh").read_text()
    read = set(re.findall(r"\$\{?(SQLD_[A-Z_]+)", script))
    written = re.findall(r"^(SQLD_[A-Z_]+)=", (DEPLOY / "sqld" / "sqld.env").read_text(), re.MULTILINE)
    assert sorted(written) == sorted(read)
    assert options(_SERVER)["EnvironmentFile"] == ["/etc/sqld/sqld.env"]
