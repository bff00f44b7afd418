"""The OpenAPI document, generated from the models that validate requests and shape responses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema

from vox_mesh.http.api.operations import Content, Operation
from vox_mesh.http.problems import CONTENT_TYPE
from vox_mesh.views.redaction import with_hidden_values

_REFERENCE: Final = "#/components/schemas/{model}"
_JSON: Final = "application/json"
BYTES: Final = "application/octet-stream"
JSON_LINES: Final = "application/jsonl"
_PROBLEM: Final = {
    "type": "object",
    "title": "Problem",
    "description": "An error: `code` is stable, `detail` and `hint` are for people.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string"},
        "detail": {"type": "string"},
        "hint": {"type": "string"},
    },
    "required": ["type", "title", "status", "code", "detail"],
    "additionalProperties": True,
}
_LINES: Final = {"type": "string", "description": "A JSON document on each line."}
ALWAYS: Final = (
    *(HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND),
    *(HTTPStatus.CONFLICT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY),
    *(HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE),
)
WITH_BODY: Final = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)


def document_of(operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the OpenAPI document of these operations."""
    kinds = [(each, TypeAdapter[Any](each.answer)) for each in operations if each.is_json]
    bodies = [each.body for each in operations if each.body is not None]
    answers, schemas = TypeAdapter.json_schemas(
        [(each.name, "serialization", adapter) for each, adapter in kinds], ref_template=_REFERENCE
    )
    taken, more = models_json_schema(
        [(model, "validation") for model in dict.fromkeys(bodies)], ref_template=_REFERENCE
    )
    components = {
        **with_hidden_values(schemas.get("$defs", {})),
        **more.get("$defs", {}),
        "Problem": _PROBLEM,
    }
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        body = None if each.body is None else taken[(each.body, "validation")]
        answer = answers.get((each.name, "serialization"))
        paths.setdefault(each.path, {})[each.method.lower()] = _describe(each, body, answer)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "vox-mesh",
            "version": version("vox-mesh"),
            "description": "The operations of the command line, served by a node of the mesh.",
        },
        "security": [{"token": []}],
        "tags": [{"name": noun} for noun in dict.fromkeys(each.noun for each in operations)],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _describe(operation: Operation, body: Any, answer: Any) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.noun],
        "summary": operation.summary,
        "x-scope": operation.scope.value,
        "x-vox-needs": operation.need.words,
        "parameters": [*_path(operation), *_query(operation.query)],
        "responses": _responses(operation, answer),
    }
    if body is not None:
        described["requestBody"] = {"required": True, "content": {_JSON: {"schema": body}}}
    return described


def _path(operation: Operation) -> Iterable[dict[str, Any]]:
    for name, kind in operation.names.items():
        schema = TypeAdapter[Any](kind).json_schema()
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _query(model: type[BaseModel] | None) -> Iterable[dict[str, Any]]:
    if model is None:
        return
    schema = model.model_json_schema(mode="validation")
    words = schema.get("$defs", {})
    for name, field in schema.get("properties", {}).items():
        is_needed = name in schema.get("required", ())
        yield {"name": name, "in": "query", "required": is_needed, "schema": _plain(field, words)}


def _plain(field: dict[str, Any], words: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a query parameter: it is scalar, and never null."""
    if "$ref" in field:
        return _plain(words[field["$ref"].rpartition("/")[2]], words)
    if "anyOf" not in field:
        return field
    kinds = [_plain(each, words) for each in field["anyOf"] if each != {"type": "null"}]
    rest = {name: value for name, value in field.items() if name not in ("anyOf", "default")}
    return {**rest, **kinds[0]} if len(kinds) == 1 else {**rest, "anyOf": kinds}


def _responses(operation: Operation, answer: Any) -> dict[str, Any]:
    content: dict[str, Any] = {_JSON: {"schema": answer}}
    if not operation.is_json:
        content = {BYTES: {}} if operation.answer is Content else {JSON_LINES: {"schema": _LINES}}
    responses: dict[str, Any] = {str(operation.status.value): {"description": "Done.", "content": content}}
    if operation.method == "GET" and operation.is_json:
        responses[str(HTTPStatus.NOT_MODIFIED.value)] = {"description": "Not modified."}
    problem = {CONTENT_TYPE: {"schema": {"$ref": _REFERENCE.format(model="Problem")}}}
    for status in (*ALWAYS, *(WITH_BODY if operation.body is not None else ())):
        responses[str(status.value)] = {"description": status.phrase, "content": problem}
    return responses
