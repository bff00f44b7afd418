"""Resource limits of commands, such as open files and memory."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from vox_mesh.errors import BadSettings

_KIBIBYTE: Final = 1_024
_BLOCK: Final = 512
_ULIMITS: Final = {
    "as": ("ulimit -v {}", _KIBIBYTE),
    "core": ("ulimit -c {}", _BLOCK),
    "cpu": ("ulimit -t {}", 1),
    "fsize": ("ulimit -f {}", _BLOCK),
    "nofile": ("ulimit -n {}", 1),
    "nproc": ("ulimit -u {0} || ulimit -p {0}", 1),  # the option differs between shells
    "stack": ("ulimit -s {}", _KIBIBYTE),
}
"""By name: the command of a POSIX shell that sets the limit, and its unit."""

_AMOUNT: Final = re.compile(r"(\d{1,15})([KMGT]?)")
_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class ResourceLimits:
    """The limits that a command and its children can't exceed or raise. A lower limit of the node stays."""

    limits: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Parse `nofile=1024,as=4G`. Raises `BadSettings`."""
        limits = {}
        for entry in (each.strip() for each in text.split(",") if each.strip()):
            name, _, amount = entry.partition("=")
            found = _AMOUNT.fullmatch(amount)
            if name not in _ULIMITS or found is None:
                raise BadSettings(
                    f"VOX_WORKER_EXEC_LIMITS: each limit must be NAME=NUMBER, got {entry!r}",
                    hint=f"the names are {', '.join(sorted(_ULIMITS))}; for example nofile=1024,as=4G",
                )
            limits[name] = int(found[1]) * _UNITS[found[2]]
        return cls(limits)

    def launch(self, program: str, arguments: Sequence[str]) -> list[str]:
        """Return the command line that sets the limits and then becomes the program."""
        commands = [
            template.format(amount // unit)
            for name, amount in self.limits.items()
            for template, unit in (_ULIMITS[name],)
        ]
        script = f'{{ {"; ".join(commands)}; }} 2>/dev/null; exec "$0" "$@"'
        return ["/bin/sh", *_privileged(), "-c", script, program, *arguments]


def _privileged() -> Sequence[str]:
    """Return the option by which bash takes no functions and options from the environment of a job."""
    is_bash = sys.platform == "darwin" or Path("/bin/sh").resolve().name == "bash"
    return ("-p",) if is_bash else ()
