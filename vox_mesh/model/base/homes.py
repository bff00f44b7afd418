"""The three homes of the data, and the ways to reach a server."""

from __future__ import annotations

from enum import StrEnum


class Home(StrEnum):
    """Where the data lives."""

    MEMORY = "memory"
    FILE = "file"
    MESH = "mesh"


class ReplicaChoice(StrEnum):
    """Which embedded replica a node of the mesh home keeps.

    `auto` takes the pushed one, and the native one where that is refused and the package is installed.
    """

    AUTO = "auto"
    PUSHED = "pushed"
    NATIVE = "native"
    OFF = "off"


class Driver(StrEnum):
    """How the mesh home talks to its server."""

    AUTO = "auto"
    WS = "ws"
    HTTP = "http"
    LIBSQL_CLIENT = "libsql-client"
