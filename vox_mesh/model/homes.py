"""The three homes of the data, and the ways to reach a server."""

from __future__ import annotations

from enum import StrEnum


class Home(StrEnum):
    """Where the data lives."""

    MEMORY = "memory"
    FILE = "file"
    MESH = "mesh"


class Driver(StrEnum):
    """How the mesh home talks to its server."""

    AUTO = "auto"
    WS = "ws"
    HTTP = "http"
    LIBSQL_CLIENT = "libsql-client"
