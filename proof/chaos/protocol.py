"""What the stage and its players know of each other: roles, words, and how a history is written."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from proof.history import Event

UP: Final = "up"
OVER: Final = "over"
DRAINED: Final = "drained"
"""What a player tells of itself."""

EXIT_REFUSED: Final = 3
"""The exit status of a player whom the mesh has fields why it can't go on, or whose stage is gone."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """Who a process is to be."""

    who: str
    incarnation: int
    seed: int
    nodes: tuple[str, ...]
    folder: str
    """Of the history."""
    outside: str
    rest_s: float
    """Between two deeds of a workload, on average."""
    workloads: tuple[str, ...] = ()
    """What it plays; all that are usual, if nothing is said."""

    @property
    def argument(self) -> str:
        """As it is given to the process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_arguments(cls) -> ProcessSpec:
        """That of this process."""
        fields = json.loads(sys.argv[1])
        return cls(**fields | {name: tuple(fields[name]) for name in ("nodes", "workloads")})


def append_events_to(path: Path) -> Callable[[Event], None]:
    """A keeper of events: when it returns, the line is in the file, whatever becomes of the process."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def keep(event: Event) -> None:
        os.write(file, event.line())

    return keep
