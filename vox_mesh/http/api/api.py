"""The API: serves all operations."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

import orjson
from aiohttp import web
from pydantic import BaseModel, TypeAdapter, ValidationError

from vox_mesh.http.access import Access, Scope
from vox_mesh.http.api.openapi import document_of
from vox_mesh.http.api.operations import JsonLines, Operation
from vox_mesh.http.api.pages import Page
from vox_mesh.http.api.streams import send_stream
from vox_mesh.http.api.table import ALL
from vox_mesh.http.body import body_of
from vox_mesh.http.problems import Handler, Problem
from vox_mesh.http.request_scope import RequestScope
from vox_mesh.runtime.services import MeshServices

DOCUMENT: Final = "/v1/openapi.json"

_JSON: Final = "application/json"
_EXACT: Final = 2**53


class Api:
    """Serves the operations on a mesh."""

    def __init__(self, mesh: MeshServices, access: Access) -> None:
        self._mesh = mesh
        self._access = access
        self._scope = RequestScope()
        self._document: bytes | None = None

    def add_to(self, app: web.Application) -> None:
        """Register the routes."""
        handlers: dict[str, dict[str, Handler]] = {DOCUMENT: {"GET": self._describe}}
        for operation in ALL:
            handlers.setdefault(operation.path, {})[operation.method] = self._handler(operation)
        for path, by_method in handlers.items():
            resource = app.router.add_resource(path)
            for method, handler in by_method.items():
                resource.add_route(method, handler)
            resource.add_route("*", _refuse_other_methods(by_method))

    def end_waiting(self) -> None:
        """Cancel all waiting requests."""
        self._scope.end_waiting()

    def _handler(self, operation: Operation) -> Handler:
        adapters = {name: TypeAdapter[Any](kind) for name, kind in operation.names.items()}

        async def handle(request: web.Request) -> web.StreamResponse:
            self._access.check(request, operation.scope)
            values = {name: _check_name(adapters[name], request.match_info[name], name) for name in adapters}
            values |= await _parse_request(operation, request)
            undo = None if operation.undo is None else partial(operation.undo, self._mesh)
            work = operation.work(self._mesh, **values)
            answer = await self._scope.do(request, work, operation.takes_s, waits=operation.waits, undo=undo)
            if isinstance(answer, JsonLines):
                return await send_stream(request, answer)
            return _respond_with(request, answer, operation.status)

        return handle

    async def _describe(self, request: web.Request) -> web.StreamResponse:
        self._access.check(request, Scope.READ)
        if self._document is None:
            self._document = orjson.dumps(document_of(ALL))
        return _respond(request, self._document, HTTPStatus.OK)


def _refuse_other_methods(methods: Iterable[str]) -> Handler:
    """Return a handler that refuses all other methods of a path."""

    async def refuse(request: web.Request) -> web.StreamResponse:
        raise web.HTTPMethodNotAllowed(request.method, methods)

    return refuse


async def _parse_request(operation: Operation, request: web.Request) -> dict[str, BaseModel]:
    """Return the validated query and body."""
    inputs: dict[str, BaseModel] = {}
    query = _parse_query(request)
    if operation.query is not None:
        inputs["query"] = _validate(operation.query, query, "query")
    elif query:
        raise _bad_request("query", f"{next(iter(query))}: nothing is asked here")
    if operation.body is not None:
        try:
            document = orjson.loads(await body_of(request))
        except orjson.JSONDecodeError as error:
            raise Problem(HTTPStatus.BAD_REQUEST, "not_json", f"the body is not JSON: {error}") from None
        inputs["body"] = _validate(operation.body, _convert_whole_numbers(document), "body", strict=True)
    return inputs


def _parse_query(request: web.Request) -> dict[str, str]:
    query = dict(request.query)
    if len(query) < len(request.query):
        raise _bad_request("query", "something is asked twice")
    return query


def _convert_whole_numbers(document: Any) -> Any:
    """Return the fields with 1.0 as 1: equal in JSON, but not to the models."""
    if not isinstance(document, dict):
        return document
    return {name: int(value) if _is_whole(value) else value for name, value in document.items()}


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and abs(value) <= _EXACT and value.is_integer()


def _validate(model: type[BaseModel], value: Any, where: str, *, strict: bool = False) -> BaseModel:
    """Return the validated model; JSON has types, so with `strict` values are not converted."""
    try:
        return model.model_validate(value, strict=strict)
    except ValidationError as error:
        raise _bad_request(where, _first_fault(error)) from None


def _check_name(adapter: TypeAdapter[Any], text: str, name: str) -> Any:
    try:
        return adapter.validate_python(text)
    except ValidationError as error:
        raise _bad_request("path", f"{name}: {_first_fault(error)}") from None


def _first_fault(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part)[:64] for part in first["loc"])
    fault = first["msg"].removeprefix("Value error, ")
    return f"{where}: {fault}" if where else fault


def _bad_request(where: str, fault: str) -> Problem:
    return Problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        f"bad_{where}",
        f"in the {where}: {fault}",
        f"{DOCUMENT} says what is allowed",
    )


def _respond_with(request: web.Request, answer: Any, status: HTTPStatus) -> web.Response:
    headers: dict[str, str] = {}
    if request.method == "GET" and isinstance(answer, Page) and answer.next is not None:
        query = urlencode({**request.query, "cursor": answer.next})
        headers["Link"] = f'<{request.path}?{query}>; rel="next"'
    return _respond(request, orjson.dumps(answer), status, headers)


def _respond(
    request: web.Request, body: bytes, status: HTTPStatus, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return the response; 304 if the client's copy is current."""
    all_headers = {"Cache-Control": "no-store", **(headers or {})}
    if request.method == "GET":
        tag = f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
        all_headers |= {"ETag": tag, "Cache-Control": "no-cache, private"}
        known = request.headers.get("If-None-Match", "")
        if tag in [each.strip().removeprefix("W/") for each in known.split(",")]:
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=all_headers)
    return web.Response(status=status, body=body, content_type=_JSON, headers=all_headers)
