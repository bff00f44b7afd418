"""Sync a native replica in a separate process. Run by its path; imports nothing of vox-mesh.

The package holds the GIL while it talks to the server, and has no deadlines. So it runs in its own process,
which the kernel ends when a call takes too long, and which ends when its parent's pipe closes.

Reads its parameters as a line of JSON, then syncs for each further line; answers each with a line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys


def main() -> int:
    """Open the replica, then sync for each line of input."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the package logs to stdout
    os.environ["RUST_LOG"] = "off"
    os.umask(0o077)
    # The default action of the alarm ends the process, whatever Python is doing.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order = json.loads(sys.stdin.readline())
    connection = None
    while True:
        error = ""
        try:
            signal.alarm(order["open_s"] if connection is None else order["sync_s"])
            if connection is None:
                import libsql

                connection = libsql.connect(
                    order["path"], sync_url=order["url"], auth_token=order["token"], isolation_level=None
                )
            connection.sync()
        except Exception as failed:
            error = str(failed) or type(failed).__name__
        finally:
            signal.alarm(0)
        answers.write(json.dumps({"error": error}) + "\n")
        answers.flush()
        if not sys.stdin.readline():
            return 0


if __name__ == "__main__":
    sys.exit(main())
