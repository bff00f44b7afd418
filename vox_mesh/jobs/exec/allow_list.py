"""The list of commands that a worker may run: programs, and patterns of their arguments and variables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Final, Self

from vox_mesh.errors import BadSettings

ANY_MORE: Final = "..."
"""The last word of an entry that allows any further arguments."""

_VARIABLE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_WILDCARDS: Final = tuple("*?[")
_NEVER: Final = ("PATH", "LD_", "DYLD_")
"""Prefixes of variables that decide which file or which code is run; no entry can allow them."""

_INTERPRETERS: Final = re.compile(
    r"(ba|da|z|k|c|tc|fi|a|mk|rba)?sh|(python|pypy|perl|ruby|node|nodejs|php|lua|guile|tclsh)[0-9.]*|deno|bun|"
    r"rscript|julia|osascript|pwsh|vim?|ex|ed|emacs|git|hg|gdb"
)
"""Programs whose options can hold another command."""

_LAUNCHERS: Final = re.compile(
    r"env|xargs|nice|ionice|nohup|timeout|time|setsid|stdbuf|sudo|doas|su|runuser|setpriv|chroot|unshare|nsenter|"
    r"bwrap|ssh|script|watch|parallel|find|flock|strace|ltrace|taskset|chrt|systemd-run|busybox|toybox|"
    r"[gmn]?awk|sed|expect|start-stop-daemon|ld-.*\.so.*|ld\.so"
)
"""Programs whose arguments are, or can hold, another command."""


@dataclass(frozen=True)
class AllowEntry:
    """One entry: a program, and patterns of its arguments; `None` if the entry has no patterns."""

    program: str
    arguments: tuple[str, ...] | None = None
    variables: Mapping[str, str] | None = None

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Parse `NAME=PATTERN … PROGRAM PATTERN …`. Raises `BadSettings`."""
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise _bad(f"{text.strip()!r} can't be split into words: {error}") from None
        variables: dict[str, str] = {}
        while words and (found := _VARIABLE.fullmatch(words[0])):
            name, variables[name] = found[1], found[2]
            if name.startswith(_NEVER):
                raise _bad(f"{name} can't be allowed: it decides which program runs")
            words.pop(0)
        program = words[0] if words else ""
        if not program or ("/" in program and not program.startswith("/")):
            raise _bad(f"each program must be a name or an absolute path, got {program!r}")
        if ANY_MORE in words[:-1]:
            raise _bad(f"{ANY_MORE} must be the last word, got {text.strip()!r}")
        return cls(program, tuple(words[1:]) if len(words) > 1 else None, variables)

    @property
    def allows_anything(self) -> bool:
        """Return whether any command can be run through this entry."""
        name = PurePath(self.program).name.lower()
        is_open = self.arguments is not None and self.arguments[0] == ANY_MORE
        return is_open and any(each.fullmatch(name) for each in (_LAUNCHERS, _INTERPRETERS))

    def __str__(self) -> str:
        return shlex.join((self.program, *(self.arguments or ())))

    def argument_fault(self, arguments: Sequence[str], file: PurePath) -> str | None:
        """Return why these arguments are not allowed, or `None` if they are; `file` is what would run."""
        if self.arguments is None:
            return self._bare_fault(arguments, file)
        patterns, is_open = self.arguments, self.arguments[-1] == ANY_MORE
        patterns = patterns[:-1] if is_open else patterns
        if len(arguments) < len(patterns) or (len(arguments) > len(patterns) and not is_open):
            return f"it takes {'at least ' if is_open else ''}{len(patterns)} arguments, got {len(arguments)}"
        for place, (pattern, argument) in enumerate(zip(patterns, arguments, strict=False), 1):
            if not _matches(pattern, argument):
                return f"argument {place} does not match {pattern!r}"
        return None

    def _bare_fault(self, arguments: Sequence[str], file: PurePath) -> str | None:
        """Return why an entry without patterns does not allow these arguments.

        It allows any, except those by which a program is known to run other commands.
        """
        names = {PurePath(self.program).name.lower(), file.name.lower()}
        reason = "other commands, and the entry has no patterns of arguments"
        if arguments and any(map(_LAUNCHERS.fullmatch, names)):
            return f"arguments of {self.program} can run {reason}"
        if arguments and arguments[0].startswith(("-", "+")) and any(map(_INTERPRETERS.fullmatch, names)):
            return f"options of {self.program} can run {reason}"
        return None

    def variable_fault(self, variables: Mapping[str, str | None]) -> str | None:
        """Return why these variables are not allowed. The value of a secret is `None`: any pattern fits."""
        allowed = self.variables or {}
        for name, value in sorted(variables.items()):
            if name not in allowed:
                return f"variable {name} is not allowed for {self.program}"
            if value is not None and not fnmatchcase(value, allowed[name]):
                return f"variable {name} does not match {allowed[name]!r}"
        return None


def parse_entries(text: str) -> tuple[AllowEntry, ...]:
    """Parse entries that are separated by commas. Raises `BadSettings`."""
    return tuple(AllowEntry.parsed(each) for each in text.split(",") if each.strip())


def _matches(pattern: str, argument: str) -> bool:
    """Return whether an argument matches. A wildcard at the beginning does not match an option."""
    if pattern.startswith(_WILDCARDS) and argument.startswith("-"):
        return False
    return fnmatchcase(argument, pattern)


def _bad(fault: str) -> BadSettings:
    return BadSettings(
        f"VOX_WORKER_EXEC_ALLOW: {fault}",
        hint="list names and absolute paths, for example /opt/tools/convert,git fetch origin",
    )
