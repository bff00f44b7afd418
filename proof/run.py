"""Running an instrument in a process of its own, which is given the time to end what it has begun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Final, NamedTuple

_ROOT: Final = Path(__file__).resolve().parents[1]
_LEAVE_S: Final = 60.0


class Ran(NamedTuple):
    """How it ended, and what it said."""

    status: int
    out: str
    err: str


class TooLong(Exception):
    """It did not come to an end, and was ended."""


def run(*arguments: str, within_s: float) -> Ran:
    """Run `python -m` with these arguments; it is asked to end before it is killed."""
    command = (sys.executable, "-m", *arguments)
    with subprocess.Popen(command, cwd=_ROOT, stdout=PIPE, stderr=PIPE, text=True) as process:
        try:
            out, err = process.communicate(timeout=within_s)
            return Ran(process.wait(), out, err)
        except subprocess.TimeoutExpired:
            raise TooLong(f"it took more than {within_s:g} s") from None
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(_LEAVE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
