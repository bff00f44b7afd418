"""Secrets of a worker that jobs may refer to by name, and their removal from the output of commands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from vox_mesh.errors import BadSettings
from vox_mesh.settings.secrets import SECRET_VARIABLES, read_secret, secret_of, take_variables

_SETTING: Final = "VOX_WORKER_EXEC_SECRETS"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_OWN: Final = ("VOX_", "TURSO_")
_MIN_BYTES: Final = 6
"""A shorter secret could not be removed from output without making it unreadable."""

_HIDDEN: Final = b"***"


@dataclass(frozen=True)
class ExecSecrets:
    """The secrets that jobs may name in `env_from`: variables and files of the worker."""

    sources: Mapping[str, Path | None] = field(default_factory=dict)
    """By name; a path for a file, `None` for the variable of that name."""

    @classmethod
    def parsed(cls, text: str | None) -> Self:
        """Parse `NAME,NAME=/path`. Raises `BadSettings`."""
        sources: dict[str, Path | None] = {}
        for entry in (each.strip() for each in (text or "").split(",")):
            name, is_file, path = entry.partition("=")
            if not entry:
                continue
            if not _NAME.fullmatch(name) or (is_file and not path.startswith("/")):
                raise _bad(f"each secret must be NAME or NAME=/path, got {entry!r}")
            if name in SECRET_VARIABLES or name.startswith(_OWN):
                raise _bad(f"{name} is a setting of the node and can't be given to jobs")
            sources[name] = Path(path) if is_file else None
        return cls(sources)

    def take(self) -> None:
        """Take the variables out of the environment of this process."""
        take_variables([name for name, path in self.sources.items() if path is None])

    def values(self, references: Mapping[str, str]) -> dict[str, str]:
        """Return the variables for these references. Raises `BadSettings` if one can't be given."""
        return {variable: self._value(name) for variable, name in references.items()}

    def _value(self, name: str) -> str:
        if name not in self.sources:
            raise BadSettings(
                f"secret {name} is not given to jobs on this worker",
                hint=f"add it to {_SETTING}, or route the job to another worker",
            )
        path = self.sources[name]
        value = secret_of(name) if path is None else read_secret(path, f"secret {name}")
        if value is None or len(value.encode()) < _MIN_BYTES or "\0" in value:
            fault = "is not set" if value is None else f"must have at least {_MIN_BYTES} bytes and no NUL"
            raise BadSettings(f"secret {name} {fault}", hint="set it where the worker is started")
        return value


def _bad(fault: str) -> BadSettings:
    return BadSettings(f"{_SETTING}: {fault}", hint="for example API_KEY,NPM_TOKEN=/run/secrets/npm")


class Redactor:
    """Replaces secrets in a stream, also if one is split between two pieces."""

    def __init__(self, secrets: Iterable[str]) -> None:
        found = {each.encode() for secret in secrets for each in (secret, *secret.splitlines())}
        words = sorted((each for each in found if len(each) >= _MIN_BYTES), key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, words))) if words else None
        self._words = words
        self._held = b""

    def redact(self, piece: bytes) -> bytes:
        """Return the text so far without secrets; what may be the beginning of one is kept for later."""
        if self._pattern is None:
            return piece
        text = self._pattern.sub(_HIDDEN, self._held + piece)
        kept = max((_overlap(text, word) for word in self._words), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def rest(self) -> bytes:
        """Return what was kept, at the end of the stream."""
        held, self._held = self._held, b""
        return held


def _overlap(text: bytes, word: bytes) -> int:
    """Return the length of the longest end of the text that is a beginning of the word."""
    start = max(0, len(text) - len(word) + 1)
    while (start := text.find(word[:1], start)) >= 0:
        if word.startswith(text[start:]):
            return len(text) - start
        start += 1
    return 0
