"""Every command and every Python example that the documentation shows is run here, as it stands."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from tools.fork_server import Program
from tools.forked import Process
from tools.sqld import Server

_ROOT: Final = Path(__file__).resolve().parents[2]
_PAGES: Final = sorted((_ROOT / "docs").rglob("*.md"))
"""The README is not one of them: `test_readme` runs it literally, from the wheel."""

_BLOCK: Final = re.compile(r"^```(console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ID: Final = re.compile(r"^([a-z0-9-]+-1-[a-z0-9]{6}(?=/|$)|[0-9A-Z]{26}$|[0-9a-f]{8,64}$)")
_PLAIN: Final = re.compile(r"vox-mesh [^|&;<>()$`*?\[~#\\]+")
_TO_FILE: Final = re.compile(r"(.*?)(?: > ([\w.]+))?", re.DOTALL)
_QUOTED: Final = re.compile(r"""'[^']*'|"[^"$`\\]*\"""")
_EXAMPLE: Final = Path("tour.py")
_MAX_NOTICE: Final = 4_096
_TIMEOUT_S: Final = 60


def blocks(page: Path) -> list[tuple[str, str]]:
    """The page's console and Python blocks, in order."""
    return _BLOCK.findall(page.read_text())


def environment(folder: Path) -> dict[str, str]:
    """Commands and modules of this checkout, and a folder of the test's own."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # A pytest that is shown would else tidy up after all that ran before it on this machine.
    return {**os.environ, "PATH": path, "HOME": str(folder), "PYTEST_DEBUG_TEMPROOT": str(folder)}


def run(command: str, folder: Path, env: dict[str, str]) -> str:
    """Run a shown command in a shell, and return what it printed."""
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=_TIMEOUT_S
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def run_plain(command: str, folder: Path, env: dict[str, str]) -> str:
    """Run a shown command and return what it printed; one of ours without a shell, which takes less time.

    A shell is left out if all that it has to do is to expand variables and to write the output to a file.
    """
    parts = _TO_FILE.fullmatch(Template(command).safe_substitute(env))
    assert parts is not None
    expanded, output = parts.groups()
    typed = shlex.split(expanded)
    if typed == ["python", _EXAMPLE.name]:
        return forked(Program((), env, code=(folder / _EXAMPLE).read_text(), folder=str(folder)))
    if not _PLAIN.fullmatch(_QUOTED.sub("", expanded)):
        return run(command, folder, env)
    printed = forked(Program(tuple(typed[1:]), env, module="vox_mesh.cli", folder=str(folder)))
    if output is None:
        return printed
    (folder / output).write_text(printed)
    return ""


@contextmanager
def behind(command: str, folder: Path, env: dict[str, str]) -> Iterator[None]:
    """Run one of ours in the background, as `&` does, until the page is at its end; it ends well then."""
    arguments = tuple(shlex.split(command.removesuffix("&"))[1:])
    with TemporaryDirectory() as short, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        notified = str(Path(short) / "ready")  # the path of a socket must be short
        manager.bind(notified)
        manager.settimeout(_TIMEOUT_S)
        seen = {**env, "NOTIFY_SOCKET": notified}
        with Process(Program(arguments, seen, module="vox_mesh.cli", folder=str(folder))) as process:
            if arguments[0] == "up":
                assert manager.recv(_MAX_NOTICE).startswith(b"READY=1")
            yield
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(_TIMEOUT_S)
    assert process.returncode == 0, f"{command}\n{err}"


def forked(wanted: Program) -> str:
    """Run a program to its end, without loading Python again, and return what it printed."""
    with Process(wanted) as process:
        out, err = process.communicate(_TIMEOUT_S)
    assert process.returncode == 0, f"{wanted}\n{out}{err}"
    return out


def is_target(name: str) -> bool:
    """Whether `make` has this target, and lists it."""
    return re.search(rf"^{name}:.*##", (_ROOT / "Makefile").read_text(), re.MULTILINE) is not None


def shape(text: str) -> list[str]:
    """What stays the same from run to run: the first word of each line, unless it is an id."""
    return [_ID.sub("an id", line.split()[0]) for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_what_a_page_shows_still_works_in_the_order_shown(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with ExitStack() as background:
        follow(page, tmp_path, request, background)


def follow(page: Path, tmp_path: Path, request: pytest.FixtureRequest, background: ExitStack) -> None:
    """Do what a page shows."""
    env = environment(tmp_path)
    server: Server
    for kind, text in blocks(page):
        if kind == "python":
            (tmp_path / _EXAMPLE).write_text(text)
            example = tmp_path / "example"
            example.mkdir(exist_ok=True)
            # On a home of its own, so that a page's commands find what its text says.
            alone = {**env, "VOX_MESH_ENABLED": "0"}
            printed = forked(Program((), alone, code=text, folder=str(example)))
            expected = re.findall(r"print\(.*\)  # (.+)", text)
            assert printed.splitlines()[: len(expected)] == expected
            continue
        for entry in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, shown = entry.partition("\n")
            if command.startswith("export "):
                name, _, value = command.removeprefix("export ").partition("=")
                env[name] = run(f"printf %s {value}", tmp_path, env) if "$" in value else value
                if name == "VOX_DB_URL":  # a server of the test's own stands in for the reader's
                    server = request.getfixturevalue("server")
                    env |= {"VOX_DB_URL": server.url, "VOX_DB_TOKEN": server.token}
            elif command.startswith("vox-mesh join "):
                server = request.getfixturevalue("server")
                (tmp_path / "db.token").write_text(server.token)
                run_plain(re.sub(r"https://\S+", server.url, command), tmp_path, env)
            elif command.startswith("make "):
                assert is_target(command.split()[1])
            elif command.endswith(" &"):
                background.enter_context(behind(command, tmp_path, env))
            else:
                printed = run_plain(command, tmp_path, env)
                if shown.strip():
                    assert shape(printed) == shape(shown), command


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in [*_PAGES, *_ROOT.glob("*.md")]:
        for target, anchor in re.findall(r"\]\((?!https?://)([^)#\s]*)(?:#([^)]+))?\)", page.read_text()):
            linked = page.parent / target if target else page
            assert linked.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in anchors(linked), f"{page.name} links to {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
