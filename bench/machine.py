"""The machine the figures were measured on."""

from __future__ import annotations

import os
import platform
import sqlite3
import urllib.request
from typing import Any

from tools.sqld import Server


def facts(server: Server | None) -> dict[str, Any]:
    """What a figure depends on. The load is that of the minute before the run: above 0, others took part."""
    return {
        "cores": os.cpu_count(),
        "arch": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "server": _version(server) if server is not None else None,
        "load": round(os.getloadavg()[0], 2),
    }


def _version(server: Server) -> str:
    with urllib.request.urlopen(f"{server.url}/version", timeout=5.0) as response:
        text: str = response.read().decode()
    return text.strip()
