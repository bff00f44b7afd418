"""Pictures of the setup of each host for the documentation, from real output: the command, and a denied edit.

`python -m tools.host_pictures [FOLDER]`
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
from html import unescape
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from tools.pictures import FOLDER, with_fonts_at_hand
from vox_mesh.hosts.setup.host_paths import HOSTS
from vox_mesh.hosts.setup.registry import HOSTS as HOOK_HOSTS

_FILE: Final = "src/app.py"
_WIDTH: Final = 106
_TIMEOUT_S: Final = 120
_REASONS: Final = ("permissionDecisionReason", "reason", "agent_message", "deny")


class Terminal:
    """A user's terminal in an empty project."""

    def __init__(self, folder: Path) -> None:
        self.project = folder / "project"
        (self.project / "src").mkdir(parents=True)
        (folder / "home").mkdir()
        git = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        self._environment = {**os.environ, **git, "HOME": str(folder / "home"), "COLUMNS": str(_WIDTH)}
        self._shown = Text()
        subprocess.run(["git", "init", "--quiet"], cwd=self.project, env=self._environment, check=True)

    def run(self, *words: str, is_shown: bool = True) -> str:
        """Run one of our commands, and show it with what it prints."""
        done = subprocess.run(
            [sys.executable, "-m", "vox_mesh.cli", *words],
            cwd=self.project,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise RuntimeError(f"vox-mesh {' '.join(words)}: {done.stdout}{done.stderr}")
        if is_shown:
            self.show(f"$ vox-mesh {' '.join(words)}", "bold")
            self.show(done.stdout.rstrip("\n"))
            if done.stderr.strip():
                self.show(done.stderr.rstrip("\n"), "dim")
        return done.stdout

    def show(self, text: str, style: str = "") -> None:
        """Show a text."""
        self._shown.append(f"{text}\n", style)

    def picture(self, name: str) -> str:
        """Return what is shown, as SVG."""
        console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_terminal=True)
        console.print(self._shown, end="")
        return with_fonts_at_hand(console.export_svg(title="vox-mesh setup", unique_id=name))


def draw(host: str, folder: Path) -> str:
    """Set a host up, let another agent hold a file, and show the answer to an edit of it."""
    terminal = Terminal(folder)
    try:
        terminal.run("setup", host)
        terminal.show("")
        terminal.run("lock", "acquire", f"file:{_FILE}", "--agent", "reviewer")
        answer = json.loads(terminal.run("hooks", "test", host, "--path", _FILE, "--json", is_shown=False))
        terminal.show("")
        terminal.show(f"{HOOK_HOSTS[host].title} edits {_FILE}:", "bold")
        terminal.show(_reason(answer["answer"]), "red")
    finally:
        terminal.run("setup", "--remove", host, is_shown=False)
    return terminal.picture(f"host-{host}")


def _reason(answer: dict[str, Any]) -> str:
    """Return the reason of a denial, wherever the host wants it."""
    found = {**answer, **answer.get("hookSpecificOutput", {})}
    return next(str(found[name]) for name in _REASONS if name in found)


def text_of(picture: str) -> str:
    """Return the text of a picture, line by line."""
    lines = re.findall(r"<text[^>]*>(.*?)</text>", picture, re.DOTALL)
    return "\n".join(unescape(line).replace("\u00a0", " ").rstrip() for line in lines)


def main(folder: Path) -> None:
    """Write the pictures of all hosts."""
    for host in HOSTS:
        with tempfile.TemporaryDirectory(prefix="vox-") as temporary:
            (folder / f"host-{host}.svg").write_text(draw(host, Path(temporary)))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else FOLDER)
