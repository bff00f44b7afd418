"""The error of a document that is not edited."""

from __future__ import annotations

from vox_mesh.errors import MeshError


class DocumentRefused(MeshError):
    """A configuration file can't be edited safely, and was left unchanged."""

    code = "document_refused"
