"""What an installation of hooks was asked for: the mesh, the agent, and how strict the hooks are."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from vox_mesh.hosts.hooks.script.vox_mesh_hook import denial

SCRIPT: Final = "vox_mesh_hook.py"
"""The name of the script that hosts call; handlers that name it are ours."""

OPERATION: Final = "/v1/hooks/"
"""The path of the operation that hosts call over HTTP; handlers that name it are ours."""

MISSING_SCRIPT: Final = "vox-mesh: locks not checked: hook script not found; run `vox-mesh setup`"
"""The note of a handler whose script, or interpreter, is gone."""

_FOLDER: Final = "hooks"
_VALUES: Final = ("--agent", "--project")


@dataclass(frozen=True)
class HookPlan:
    """The options of an installation."""

    host: str
    home: Path
    """The absolute home of the mesh."""

    python: str
    """The interpreter that runs the script."""

    project: Path | None = None
    """The root of the project; none for the user's scope, where it depends on the session."""

    agent: str | None = None
    auto: bool = False
    strict: bool = False
    address: str | None = None
    """The fixed address of the node, for hosts that call it over HTTP."""

    @property
    def script(self) -> Path:
        """The copy of the script, which outlives the package. It knows its home by its place."""
        return self.home / _FOLDER / SCRIPT

    @classmethod
    def of_command(cls, command: str, address: str | None = None) -> HookPlan | None:
        """Return the plan of an installed command line, or `None` if another version has made it."""
        words = split_command(command)
        at = next((number for number, word in enumerate(words) if Path(word).name == SCRIPT), 0)
        options = list(words[at + 2 :])
        if at < 2 or len(words) < at + 2 or "--home" in options:
            return None
        agent, project = (_value_of(options, name) for name in _VALUES)
        return cls(
            host=words[at + 1],
            home=Path(words[at]).parents[1],
            python=words[at - 2],
            project=None if project is None else Path(project),
            agent=agent,
            auto="--auto" in options,
            strict="--strict" in options,
            address=address,
        )

    def command(self, *, may_deny: bool = False, without: str = "{}") -> str:
        """Return the command line of a handler.

        `without` is the answer if the script or its interpreter is gone: Python would end with 2, which hosts
        take for a denial without a reason. With `may_deny`, a strict hook denies then.
        """
        answer = json.dumps(denial(self.host, MISSING_SCRIPT)) if may_deny and self.strict else without
        return f"{self._call} || echo {shlex.quote(answer)}"

    def waiter(self) -> str:
        """Return the command line of the waiter, which ends with 2 if there is mail."""
        return f"[ ! -r {shlex.quote(str(self.script))} ] || exec {self._call} --wait"

    @property
    def _call(self) -> str:
        given = [("--agent", self.agent), ("--project", self.project)]
        values = [str(word) for option in given if option[1] is not None for word in option]
        flags = [f"--{name}" for name in ("auto", "strict") if getattr(self, name)]
        return shlex.join([self.python, "-IS", str(self.script), self.host, *values, *flags])

    def url(self) -> str:
        """Return the URL of the operation at the fixed address."""
        options = {"project": str(self.project)} if self.project is not None else {}
        options |= {name: "true" for name in ("auto", "strict") if getattr(self, name)}
        query = f"?{urlencode(options)}" if options else ""
        return f"{(self.address or '').rstrip('/')}{OPERATION}{self.host}{query}"


def split_command(command: str) -> list[str]:
    """Return the words of a command line; one that the user has broken has none."""
    try:
        return shlex.split(command)
    except ValueError:
        return []


def _value_of(options: Sequence[str], name: str) -> str | None:
    """Return the word behind an option."""
    at = options.index(name) + 1 if name in options else len(options)
    return options[at] if at < len(options) else None
