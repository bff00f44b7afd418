"""From an empty machine to a denied edit: drive `vox-mesh setup claude` as a user would, and time each step.

`python -m tools.five_minutes [--offline] [--keep]`

It builds the wheel, makes an empty home folder and an empty virtual environment, installs the wheel with the
extra `mcp`, makes a project, sets up Claude Code, lets another agent lock a file, and calls the hook as
Claude Code does. `--offline` takes the dependencies from this environment instead of installing them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
LIMIT_S: Final = 300.0
_COMMAND_S: Final = 600.0
_FILE: Final = "src/app.py"
_SETTINGS: Final = ".claude/settings.local.json"
_KEPT: Final = ("LANG", "LC_ALL", "TMPDIR")
_PIP: Final = re.compile(r"PIP_\w+|SSL_CERT_\w+|HTTPS?_PROXY|NO_PROXY|https?_proxy|no_proxy", re.ASCII)


class StepFailed(Exception):
    """A step did not do what it should."""


@dataclass
class Machine:
    """An empty machine: a home folder, a virtual environment and a project, and nothing of this user's."""

    folder: Path
    wheel: Path | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a new user, and how this machine reaches the index of packages."""
        kept = {name: value for name, value in os.environ.items() if name in _KEPT or _PIP.fullmatch(name)}
        path = os.pathsep.join((str(self.folder / "venv" / "bin"), os.environ["PATH"]))
        git = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        return {**kept, **git, "HOME": str(self.folder / "home"), "PATH": path}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step."""
        began = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - began
        print(f"{self.seconds[name]:7.1f} s  {name}", flush=True)

    def run(
        self,
        *words: str,
        folder: Path | None = None,
        stdin: str = "",
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """Run a command to its end and return what it printed."""
        done = subprocess.run(
            words,
            cwd=folder or self.project,
            env={**self.environment, **(variables or {})},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
        )
        if done.returncode != 0:
            raise StepFailed(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    # --- steps -----------------------------------------------------------------------------------

    def prepare(self, *, offline: bool) -> None:
        """Build the wheel and install it into an empty virtual environment."""
        for name in ("home", "project", "dist"):
            (self.folder / name).mkdir(parents=True)
        if self.wheel is None:
            with self.step("build the wheel"):
                build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
                self.run(*build, "--directory", str(self.folder / "dist"), folder=ROOT)
                (self.wheel,) = (self.folder / "dist").glob("*.whl")
        with self.step("make an empty virtual environment"):
            options = ["--without-pip"] if offline else []
            self.run(sys.executable, "-m", "venv", *options, str(self.folder / "venv"))
        with self.step("install the wheel with [mcp]"):
            self._install(self.wheel, offline=offline)

    def _install(self, wheel: Path, *, offline: bool) -> None:
        python = str(self.folder / "venv" / "bin" / "python")
        if not offline:
            self.run(python, "-m", "pip", "install", "--quiet", f"{wheel}[mcp]")
            return
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
        self.run(*pip, "--no-deps", "--no-index", str(wheel))
        (packages,) = (self.folder / "venv").glob("lib/python*/site-packages")
        (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")

    def set_up(self) -> None:
        """Make a project and set up Claude Code in it, which starts a node."""
        with self.step("git init"):
            self.run("git", "init", "--quiet")
            (self.project / _FILE).parent.mkdir()
            (self.project / _FILE).write_text("print('hello')\n")
        with self.step("vox-mesh setup claude"):
            self.run("vox-mesh", "setup", "claude")
        with self.step("vox-mesh setup --check claude"):
            self.run("vox-mesh", "setup", "--check", "claude")

    def edit(self, session: str = "five-minutes") -> dict[str, Any]:
        """Call the installed hook with an edit, as Claude Code does, and return its answer."""
        event = {
            "session_id": session,
            "transcript_path": str(self.folder / "home" / "transcript.jsonl"),
            "cwd": str(self.project),
            "permission_mode": "default",
            "hook_event_name": "PreToolUse",
            "tool_name": "Edit",
            "tool_input": {
                "file_path": str(self.project / _FILE),
                "old_string": "hello",
                "new_string": "goodbye",
                "replace_all": False,
            },
            "tool_use_id": "toolu_01",
        }
        variables = {"CLAUDE_PROJECT_DIR": str(self.project), "CLAUDECODE": "1"}
        answers = [
            self.run(*words, stdin=json.dumps(event), variables=variables) for words in self._handlers("Edit")
        ]
        (answer,) = answers
        read: dict[str, Any] = json.loads(answer or "{}")
        return read

    def _handlers(self, tool: str) -> list[Sequence[str]]:
        """Return the command lines that the configuration names for a tool."""
        settings = json.loads((self.project / _SETTINGS).read_text())
        return [
            ["/bin/sh", "-c", handler["command"]]
            for group in settings["hooks"]["PreToolUse"]
            if re.fullmatch(group.get("matcher", ".*"), tool)
            for handler in group["hooks"]
        ]

    def deny(self) -> str:
        """Have the edit of a free file allowed, and that of a held one denied; return the reason."""
        with self.step("an edit of a free file is allowed"):
            allowed = self.edit().get("hookSpecificOutput", {}).get("permissionDecision", "allow")
            if allowed != "allow":
                raise StepFailed(f"the edit of a free file was answered with {allowed}")
        with self.step("another agent locks the file"):
            self.run("vox-mesh", "lock", "acquire", f"file:{_FILE}", "--agent", "reviewer")
        with self.step("the edit is denied"):
            answer = self.edit()
        specific = answer.get("hookSpecificOutput", {})
        if specific.get("permissionDecision") != "deny":
            raise StepFailed(f"the edit of a held file was answered with {answer}")
        return str(specific["permissionDecisionReason"])

    def clean_up(self) -> None:
        """Take the setup back, which also stops the node."""
        if (self.project / ".vox").exists():
            self.run("vox-mesh", "setup", "--remove", "claude")


def drive(folder: Path, *, offline: bool, wheel: Path | None = None) -> Machine:
    """Do all steps in an empty folder. Raises `StepFailed` with what went wrong."""
    machine = Machine(folder, wheel)
    try:
        machine.prepare(offline=offline)
        machine.set_up()
        reason = machine.deny()
        print(f"           {reason}")
    finally:
        machine.clean_up()
    total = sum(machine.seconds.values())
    print(f"{total:7.1f} s  in all")
    if total > LIMIT_S:
        raise StepFailed(f"it took {total:.0f} s, more than {LIMIT_S:.0f}")
    return machine


def main() -> int:
    """Run it in a temporary folder, and return the exit code."""
    parser = argparse.ArgumentParser(description="From an empty machine to a denied edit.")
    parser.add_argument("--offline", action="store_true", help="take dependencies from this environment")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="vox-five-"))
    try:
        drive(folder, offline=given.offline)
    except StepFailed as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if not given.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
