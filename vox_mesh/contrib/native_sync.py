"""The process that syncs a native replica; run by its path, it knows nothing of the rest.

The package keeps Python's lock while it talks to the server and knows no deadline. So it has a process of its
own, which the kernel ends when a call takes too long, and which ends with its parent's pipe.

Reads the order as a line of JSON, then syncs for each further line; answers each with a line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys


def main() -> int:
    """Open the replica, then sync whenever asked."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the package logs to stdout
    os.environ["RUST_LOG"] = "off"
    os.umask(0o077)
    # The alarm's default is the end of the process, whatever Python is doing.
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
