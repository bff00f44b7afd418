"""`vox-mesh console`: a person gets an address that signs in once; an agent gets none."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.cli.conftest import MESH_TOKEN, VoxCommand, running_node

_PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def vox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VoxCommand]:
    """Commands next to a running node, of a user whom git knows."""
    folder = tmp_path_factory.mktemp("mesh")
    home = folder / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\n\tname = Ann  O'Neil\n")
    command = VoxCommand.with_home(folder, HOME=str(home))
    with running_node(command, VOX_MESH_TOKEN=MESH_TOKEN):
        yield command


def _session_of(address: str) -> dict[str, object]:
    """Sign in as the page at an address does; the session."""
    parts = urlsplit(address)
    origin, code = f"{parts.scheme}://{parts.netloc}", parts.fragment.removeprefix("code=")
    headers = {"Sec-Fetch-Site": "same-origin", "Origin": origin}
    answer = httpx.post(f"{origin}/ui/session", json={"code": code}, headers=headers, timeout=_PATIENCE_S)
    assert answer.status_code == 200, answer.text
    session: dict[str, object] = answer.json()["session"]
    return session


def test_the_address_signs_in(vox: VoxCommand) -> None:
    (address,) = vox("console", "--no-open", "--name", "alice").out.splitlines()
    session = _session_of(address)
    assert (session["name"], session["may_write"]) == ("alice", True)


def test_the_name_is_that_of_the_user_and_of_no_repository(vox: VoxCommand) -> None:
    subprocess.run(["git", "init", "-q"], cwd=vox.folder, check=True)
    subprocess.run(["git", "config", "user.name", "Mallory"], cwd=vox.folder, check=True)
    document = vox("console", "--read-only", "--json").document
    assert (document["name"], document["read_only"], document["expires_in_s"]) == ("Ann-O-Neil", True, 60)
    session = _session_of(document["url"])
    assert (session["name"], session["may_write"]) == ("Ann-O-Neil", False)
    named = vox("console", "--node", document["node_id"], "--json").document
    assert named["node_id"] == document["node_id"]


def test_the_browser_is_opened_without_the_code_among_its_arguments(vox: VoxCommand, tmp_path: Path) -> None:
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$@" > {opened}\n')
    browser.chmod(0o700)
    (address,) = vox.having(DISPLAY=":0", BROWSER=f"{browser} %s")("console").out.splitlines()
    redirect = Path(urlsplit(opened.read_text().strip()).path)
    assert address.partition("#code=")[2] not in opened.read_text()
    assert f"url={address}" in redirect.read_text()
    assert stat.S_IMODE(redirect.stat().st_mode) == 0o600


@pytest.mark.parametrize("variable", ["VOX_AGENT_ID", "VOX_AGENT_TOKEN"])
def test_an_agent_is_refused(vox: VoxCommand, variable: str) -> None:
    refused = vox.having(**{variable: "vxa1" + "0" * 60})("console", "--no-open")
    assert (refused.code, "must be run by a person" in refused.error) == (2, True)


def test_an_address_needs_the_token_and_a_safe_way(vox: VoxCommand) -> None:
    url = vox("console", "--json").document["url"].partition("/ui/")[0]
    assert "needs VOX_MESH_TOKEN" in vox("console", "--node", url).error
    with_token = vox.having(VOX_MESH_TOKEN=MESH_TOKEN)
    (address,) = with_token("console", "--no-open", "--node", url).out.splitlines()
    assert _session_of(address)["name"] == "Ann-O-Neil"
    wrong = vox.having(VOX_MESH_TOKEN=MESH_TOKEN[::-1])("console", "--no-open", f"--node={url}")
    assert "wrong token" in wrong.error
    elsewhere = with_token("console", "--node", "http://10.255.255.1:7400")
    assert "must be https, or of this machine" in elsewhere.error


def test_a_fault_is_one_line(vox: VoxCommand, tmp_path: Path) -> None:
    assert "name must be 1 to 64 letters" in vox("console", "--name", "a b").error
    assert "'absent' does not run here" in vox("console", "--node", "absent").error
    alone = VoxCommand.with_home(tmp_path)("console")
    assert (alone.code, alone.error) == (
        1,
        "vox-mesh: no node runs here; start one with `vox-mesh up` [not_known]\n",
    )


def test_a_node_without_a_console_says_so(tmp_path: Path) -> None:
    vox = VoxCommand.with_home(tmp_path)
    with running_node(vox, VOX_MESH_UI="0"):
        assert "has no console; start it with VOX_MESH_UI=1" in vox("console").error
