"""Errors of the mesh from the problem documents that a node answers with."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from vox_mesh import errors
from vox_mesh.client.records import holder_of
from vox_mesh.errors import BadValue, MeshError, NodeRefused, Overloaded, Unauthorized

_BY_CODE: Final = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, MeshError)
}
_BY_STATUS: Final = {
    HTTPStatus.UNAUTHORIZED: Unauthorized,
    HTTPStatus.UNPROCESSABLE_ENTITY: BadValue,
    HTTPStatus.TOO_MANY_REQUESTS: Overloaded,
    HTTPStatus.SERVICE_UNAVAILABLE: Overloaded,
}
_FIELDS: Final = ("reason", "node_id", "approval_id", "expires_at", "retry_in_s")
_MAX_TEXT: Final = 4_096


def error_of(status: int, problem: Mapping[str, Any]) -> MeshError:
    """Return the error that a problem document describes, with the fields that its kind has."""
    code = str(problem.get("code", ""))
    detail = str(problem.get("detail") or f"the node answered with status {status}")[:_MAX_TEXT]
    kind = _BY_CODE.get(code) or _BY_STATUS.get(HTTPStatus(status))
    if kind is None:
        return NodeRefused(detail, problem=code, hint=str(problem.get("hint", "")))
    error = kind.__new__(kind, detail)  # their own arguments differ, and describe what the node has seen
    error.args, error.hint = (detail,), str(problem.get("hint", ""))
    vars(error).update(_fields_of(problem))
    return error


def _fields_of(problem: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: problem[name] for name in _FIELDS if name in problem}
    if isinstance(problem.get("faults"), list):
        found["faults"] = tuple(map(str, problem["faults"]))
    if isinstance(problem.get("holders"), list):
        found["holders"] = [holder_of(each) for each in problem["holders"]]
    return found
