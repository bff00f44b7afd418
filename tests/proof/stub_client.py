"""Stands in for a player: reports that it is up, and follows orders."""

from __future__ import annotations

import json
import os
import signal
import sys


def say(word: str) -> None:
    """Tell the stage."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


say("up")
for line in sys.stdin:
    match json.loads(line)["do"]:
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "fail":
            sys.exit(3)
        case "leave":
            break
        case answer:
            say(answer)
