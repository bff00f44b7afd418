"""Find every planted bug: `python -m proof.mutants [--only NAME …] [--seeds N] [--json FILE]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from proof.mutants.hunt import SECONDS, SEEDS, HuntResult, hunt
from proof.mutants.planted_bugs import PLANTS


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m proof.mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=PLANTS, default=tuple(PLANTS))
    parser.add_argument("--seeds", type=int, default=SEEDS, help="tried for each in simulation (%(default)s)")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of chaos for each (%(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="at the same time (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there, too")
    parser.add_argument("--list", action="store_true", help="say which there are, and do nothing")
    return parser.parse_args()


def _listed(names: Sequence[str]) -> str:
    return "\n".join(f"{name:<28} {PLANTS[name].instrument:<16} {PLANTS[name].description}" for name in names)


def main() -> None:
    """Print which check found which bug; exit with 1 if one was not found."""
    options = _options()
    if options.list:
        print(_listed(options.only))
        return
    found: list[HuntResult] = []
    with ThreadPoolExecutor(options.processes) as hunters:
        try:
            hunts = [
                hunters.submit(hunt, PLANTS[name], options.seeds, options.seconds) for name in options.only
            ]
            for each in hunts:
                found.append(each.result())
                print(found[-1], flush=True)
        except KeyboardInterrupt:
            hunters.shutdown(wait=False, cancel_futures=True)
            sys.exit("interrupted")
    if options.json is not None:
        options.json.write_text("".join(json.dumps(asdict(each)) + "\n" for each in found))
    missed = [each.name for each in found if not each.by]
    print(f"\n{len(found) - len(missed)} of {len(found)} planted bugs were found")
    if missed:
        sys.exit(f"not found: {', '.join(missed)}")


if __name__ == "__main__":
    main()
