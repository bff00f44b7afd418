"""Run a module with a planted bug: `python -m proof.mutants.run_with_bug PLANT MODULE ARGUMENTS…`."""

from __future__ import annotations

import runpy
import sys

from proof.mutants.planted_bugs import PLANTS


def main() -> None:
    """Plant the bug, then run the other module in this process."""
    if len(sys.argv) < 3 or sys.argv[1] not in PLANTS:
        sys.exit("name a planted bug and a module: python -m proof.mutants.run_with_bug PLANT MODULE …")
    _, plant, module, *arguments = sys.argv
    PLANTS[plant].plant()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
