"""Check a stored history: `python -m proof.judge FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from proof.history import History
from proof.suite import CHECKS
from proof.verdicts import Verdict, evaluate


def evaluate_all(history: History) -> list[Verdict]:
    """Return the verdict of every check."""
    return [evaluate(check, history) for check in CHECKS]


def main() -> None:
    """Print the verdicts; exit with 1 if a check failed."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("name the folder of a history: python -m proof.judge FOLDER")
    results = evaluate_all(History.read(Path(sys.argv[1])))
    print(*results, sep="\n")
    sys.exit(any(not verdict.holds for verdict in results))


if __name__ == "__main__":
    main()
