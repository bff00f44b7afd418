"""Judge a history that was written before: `python -m proof.judge FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from proof.history import History
from proof.plot import CHECKS
from proof.verdicts import Verdict, judged


def verdicts(history: History) -> list[Verdict]:
    """On every promise."""
    return [judged(check, history) for check in CHECKS]


def main() -> None:
    """Print the verdicts; exit with 1 if one is bad."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("name the folder of a history: python -m proof.judge FOLDER")
    said = verdicts(History.read(Path(sys.argv[1])))
    print(*said, sep="\n")
    sys.exit(any(not verdict.holds for verdict in said))


if __name__ == "__main__":
    main()
