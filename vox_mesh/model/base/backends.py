"""The three backends of the data, and the ways to reach a server."""

from __future__ import annotations

from enum import StrEnum


class Backend(StrEnum):
    """The backend where the data lives."""

    MEMORY = "memory"
    FILE = "file"
    SERVER = "mesh"


class ReplicaChoice(StrEnum):
    """Which embedded replica a node of the server backend keeps.

    `auto` takes the pushed one, and the native one if that is refused and the package is installed. Of a
    `shared` one, all nodes of a home read the same copy, which one of them keeps up to date.
    """

    AUTO = "auto"
    PUSHED = "pushed"
    NATIVE = "native"
    SHARED = "shared"
    OFF = "off"


class Driver(StrEnum):
    """How the server backend talks to its server."""

    AUTO = "auto"
    WS = "ws"
    HTTP = "http"
    LIBSQL_CLIENT = "libsql-client"
