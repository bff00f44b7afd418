"""The errors of a self-hosted server, which its commands and the project's own tools report."""

from __future__ import annotations

from typing import ClassVar

from vox_mesh.errors import BadSettings, MeshError


class ServerNotInstalled(MeshError):
    """The server can't be fetched or built here, or was not installed."""

    code: ClassVar[str] = "server_not_installed"


class ToolMissing(BadSettings):
    """A program that the installation needs is not there."""

    code = "tool_missing"


class DataInUse(MeshError):
    """Another server runs on this data, or at this address."""

    code: ClassVar[str] = "data_in_use"
