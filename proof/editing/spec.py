"""What the run and its agents share: arguments, the form of marks, and the names of signals."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, dataclass
from typing import Final

FILES: Final = ("src/engine.txt", "docs/guide.txt", "notes.txt")
"""Few, so that agents meet."""

UP: Final = "up"
EDITING: Final = "editing"
"""An agent has written half of an edit."""
TAKEN_OVER: Final = "taken-over"
OVER: Final = "over"
WOKEN: Final = "woken"

_MARK: Final = re.compile(r"^([a-z]+)\.(\d+)\.(\d+) (.+)$", re.MULTILINE)
_HALF: Final = " begun,"
_REST: Final = " ended"


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """The arguments of a process that plays an agent."""

    who: str
    incarnation: int
    seed: int
    folder: str
    """The folder of the history."""
    project: str
    """The work tree of the agent."""
    url: str
    """The service of the node."""
    others: tuple[str, ...]
    rest_s: float

    @property
    def argument(self) -> str:
        """The command-line argument."""
        return json.dumps(asdict(self))

    @classmethod
    def from_arguments(cls) -> AgentSpec:
        """Return that of this process."""
        fields = json.loads(sys.argv[1])
        return cls(**fields | {"others": tuple(fields["others"])})


@dataclass(frozen=True, slots=True)
class Mark:
    """A line that one edit adds to a file."""

    who: str
    incarnation: int
    number: int

    def __str__(self) -> str:
        return f"{self.who}.{self.incarnation}.{self.number}"

    @property
    def halves(self) -> tuple[str, str]:
        """The two pieces in which the line is written."""
        return f"{self}{_HALF}", f"{_REST}\n"


def marks_in(text: str) -> list[str]:
    """Return the marks of all edits in a text, also of half ones."""
    return [".".join(found.groups()[:3]) for found in _MARK.finditer(text)]
