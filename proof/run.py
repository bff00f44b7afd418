"""Run an instrument in a subprocess, with time to shut down."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Final, NamedTuple

_ROOT: Final = Path(__file__).resolve().parents[1]
_LEAVE_S: Final = 60.0


class Ran(NamedTuple):
    """The exit status and output of an instrument."""

    status: int
    out: str
    err: str


class TooLong(Exception):
    """The instrument did not end in time, and was stopped."""


def run(*arguments: str, within_s: float) -> Ran:
    """Run `python -m` with these arguments; at the deadline, terminate it before killing it."""
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
