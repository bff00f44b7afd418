"""Ask a node to verify the whole op log, so that its metrics show the result: for timers and crons.

VOX_MESH_CONTROL_ADDR names the node; VOX_MESH_READ_TOKEN, a variable or a systemd credential, authenticates.
Exit code: 0 if the log is intact, 1 if it was changed, 2 if no node is named, 3 if the node gives no answer.
"""
# ruff: noqa: T201 - it is for a log

from __future__ import annotations

import json
import os
import sys
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

_VARIABLE: Final = "VOX_MESH_READ_TOKEN"
_TIMEOUT_S: Final = 600.0
"""The maximum time that the node takes."""


def reports(address: str, token: str) -> list[dict[str, Any]]:
    """Return the node's report on each chain."""
    request = urllib.request.Request(f"{address.rstrip('/')}/v1/oplog/verify")  # noqa: S310 - see below
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=_TIMEOUT_S) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found


def _token() -> str:
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    if folder and (file := Path(folder, _VARIABLE)).exists():
        return file.read_text().strip()
    return os.environ.get(_VARIABLE, "")


def main() -> int:
    """Print the broken chains, and return the exit code."""
    address = os.environ.get("VOX_MESH_CONTROL_ADDR", "")
    if not address.startswith(("http://", "https://")):
        print("verify: VOX_MESH_CONTROL_ADDR must be an http:// or https:// address", file=sys.stderr)
        return 2
    try:
        found = reports(address, _token())
    except (OSError, HTTPException, ValueError) as error:
        print(f"verify: {address}: {error}", file=sys.stderr)
        return 3
    broken = [each for each in found if each["problem"] is not None]
    for each in broken:
        where = "" if each["seq"] is None else f", entry {each['seq']}"
        print(f"verify: {each['node_id']}{where}: {each['problem']}", file=sys.stderr)
    print(f"chains: {len(found)}, broken: {len(broken)}")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
