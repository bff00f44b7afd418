"""The API: serves all operations. Answers of any length are streamed, never held in memory as a whole."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

import orjson
from aiohttp import web
from pydantic import BaseModel, TypeAdapter, ValidationError

from vox_mesh.errors import ApprovalPending, MeshError
from vox_mesh.http.access import Access, Credential, Scope
from vox_mesh.http.admission import Admission, Load
from vox_mesh.http.api.agents.agents import AGENTS
from vox_mesh.http.api.agents.hooks import HOOKS
from vox_mesh.http.api.artifacts import ARTIFACTS
from vox_mesh.http.api.conflicts import CONFLICTS
from vox_mesh.http.api.database import DATABASE
from vox_mesh.http.api.encoding import encoded, encoded_at_once
from vox_mesh.http.api.grants.approvals import APPROVALS
from vox_mesh.http.api.grants.grants import GRANTS
from vox_mesh.http.api.help import HELP
from vox_mesh.http.api.job_actions import ACTIONS
from vox_mesh.http.api.jobs import JOBS
from vox_mesh.http.api.locks import LOCKS
from vox_mesh.http.api.messages import MESSAGES
from vox_mesh.http.api.nodes import NODES, OWNER_COMMANDS, ROLES
from vox_mesh.http.api.openapi import BYTES, JSON_LINES, document_of
from vox_mesh.http.api.operations import Content, JsonLines, Operation, RequestModel
from vox_mesh.http.api.oplog import OPLOG
from vox_mesh.http.api.pages import Page
from vox_mesh.http.api.rhythm import BUDGETS, RHYTHM
from vox_mesh.http.api.scheduling import CRONS, KINDS, RULES, WORKERS
from vox_mesh.http.api.schemas import SCHEMAS
from vox_mesh.http.api.work import WORK
from vox_mesh.http.api.workflows import WORKFLOWS
from vox_mesh.http.connections import mark_active
from vox_mesh.http.limits import Quotas
from vox_mesh.http.principals.digests import check_digest
from vox_mesh.http.principals.needs import Need
from vox_mesh.http.principals.own_names import check_headers, with_own_name
from vox_mesh.http.problems import Handler, Problem, problem_of
from vox_mesh.http.redaction import redacted_json
from vox_mesh.http.requests import RequestScope, body_of, read_body
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.acting import acting_as, acting_as_principal
from vox_mesh.store.slices import in_slices

_log = logging.getLogger(__name__)

_NOUNS: Final = (
    *(NODES, ROLES, AGENTS, HOOKS, GRANTS, APPROVALS, LOCKS, OPLOG, CONFLICTS, MESSAGES, JOBS, ACTIONS),
    *(WORK, ARTIFACTS),
    *(WORKFLOWS, CRONS, RULES, KINDS, WORKERS, RHYTHM, HELP, BUDGETS, SCHEMAS, DATABASE),
)
OPERATIONS: Final[tuple[Operation, ...]] = tuple(operation for noun in _NOUNS for operation in noun.all)
"""All operations, in the order of the document."""

DOCUMENT: Final = "/v1/openapi.json"
AGENT_HEADER: Final = "Vox-Agent"

_JSON: Final = "application/json"
_EXACT: Final = 2**53
_PIECE_BYTES: Final = 64 * 2**10
_NEVER_SHOWN: Final = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff"}
"""The headers of content that agents have made: a browser must not run it."""

_WRITE_TIMEOUT_S: Final = 10.0
"""The timeout for the client to read a piece of a streamed answer."""


class Api:
    """Serves the operations on a mesh."""

    def __init__(
        self,
        mesh: MeshServices,
        access: Access,
        quotas: Quotas | None = None,
        admission: Admission | None = None,
    ) -> None:
        self._mesh = mesh
        self._access = access
        self._quotas = quotas
        self._admission = admission or Admission()
        self._scope = RequestScope()
        self._document: bytes | None = None

    def add_to(self, app: web.Application) -> None:
        """Register the routes."""
        handlers: dict[str, dict[str, Handler]] = {DOCUMENT: {"GET": self._describe}}
        for method, path, command in OWNER_COMMANDS:  # first: a name in another path may fit theirs
            handlers.setdefault(path, {})[method] = self._refusing(command)
        # A route is found by trying them in turn: the ones that agents use all the time come first.
        for operation in sorted(OPERATIONS, key=lambda each: each not in WORK.all):
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
            credential = await self._access.identify(request, operation.scope)
            with self._recorded(credential, request):
                named = with_own_name(credential.agent, operation.own_path, {**request.match_info})
                check_headers(credential, request.headers.getall(AGENT_HEADER, ()), AGENT_HEADER)
                values = {name: _check_name(adapters[name], named[name], name) for name in adapters}
                values |= await _parse_request(operation, request, credential)
                if operation.need.is_signed and credential.signature is None:
                    raise _signature_needed()
                refusal = self._refusal_unless_own(credential, operation.need, values)
                await self._count(credential, operation, values.get("body"))
                async with self._admission.place(operation.load_of(values.values()), credential):
                    if refusal is not None and not await operation.need.allows_own(
                        self._mesh, credential.agent, values
                    ):
                        raise refusal
                    with _acting(request, credential):
                        return await self._answer(request, operation, credential, values)

        return handle

    def _refusal_unless_own(
        self, credential: Credential, need: Need, values: Mapping[str, Any]
    ) -> Problem | None:
        """Raise 403 if an agent lacks a grant; return it if none is needed for things of its own."""
        try:
            self._access.check_grant(credential, partial(need.check, inputs=values))
        except Problem as refusal:
            if need.is_own is None:
                raise
            return refusal
        return None

    @contextmanager
    def _recorded(self, credential: Credential, request: web.Request) -> Iterator[None]:
        """Record what an agent is refused."""
        try:
            yield
        except (Problem, MeshError) as error:
            problem = problem_of(error) if isinstance(error, MeshError) else error
            if problem.status == HTTPStatus.FORBIDDEN and not isinstance(error, ApprovalPending):
                self._access.note_refusal(credential, request, problem.code)
            raise

    async def _answer(
        self, request: web.Request, operation: Operation, credential: Credential, values: Mapping[str, Any]
    ) -> web.StreamResponse:
        undo = None if operation.undo is None else partial(operation.undo, self._mesh)
        work = operation.work(self._mesh, **values)
        answer = await self._scope.do(request, work, operation.takes_s, waits=operation.waits, undo=undo)
        if isinstance(answer, JsonLines | Content):
            return await send_stream(request, answer)
        is_redacted = credential.is_redacted or (credential.agent is not None and operation.need.is_read)
        redact = partial(redacted_json, reader=credential.agent) if is_redacted else None
        body = None if is_redacted else encoded_at_once(answer)
        if body is None:
            body = b"".join(await in_slices(encoded(answer, redact)))
        return _respond(request, body, operation.status, _link_to_next(request, answer))

    async def _count(self, credential: Credential, operation: Operation, body: Any) -> None:
        """Count the request and its items. Raises 429 if there are too many."""
        if self._quotas is None:
            return
        is_read = operation.scope is Scope.READ
        items = body.item_count if isinstance(body, RequestModel) and not is_read else 1
        self._quotas.take(credential.name, items, is_read=is_read)
        if operation.opens == "jobs":
            await self._quotas.open_items("jobs", items, self._mesh.jobs.queries.count_open)
        elif operation.opens == "messages":
            await self._quotas.open_items("messages", items, self._mesh.messages.queries.count_open)

    def _refusing(self, command: str) -> Handler:
        """Return a handler for an operation of the owner: no token allows it."""

        async def refuse(request: web.Request) -> web.StreamResponse:
            credential = await self._access.identify(request, Scope.WRITE)
            self._access.note_refusal(credential, request, "owner_only")
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "owner_only",
                "this is done with the owner's key, on the owner's machine, and not over HTTP",
                f"run `{command}` there",
            )

        return refuse

    async def _describe(self, request: web.Request) -> web.StreamResponse:
        credential = await self._access.identify(request, Scope.READ)
        async with self._admission.place(Load.READ, credential):
            if self._document is None:
                self._document = await asyncio.to_thread(lambda: orjson.dumps(document_of(OPERATIONS)))
        return _respond(request, self._document, HTTPStatus.OK)


def _acting(request: web.Request, credential: Credential) -> AbstractContextManager[None]:
    """Have the log name the agent that has proved who it is, or that the owner's side says it acts for."""
    if credential.agent is not None:
        return acting_as_principal(credential.agent)
    agent = request.headers.get(AGENT_HEADER)
    return nullcontext() if agent is None else acting_as(agent)


def _signature_needed() -> Problem:
    detail = "agent must sign this request with its key"
    return Problem(HTTPStatus.FORBIDDEN, "signature_needed", detail, "sign it; no bearer or token is enough")


def _refuse_other_methods(methods: Iterable[str]) -> Handler:
    """Return a handler that refuses all other methods of a path."""

    async def refuse(request: web.Request) -> web.StreamResponse:
        raise web.HTTPMethodNotAllowed(request.method, methods)

    return refuse


async def _parse_request(
    operation: Operation, request: web.Request, credential: Credential
) -> dict[str, BaseModel]:
    """Return the validated query and body, with the name of the agent that has proved who it is."""
    inputs: dict[str, BaseModel] = {}
    await check_digest(request, credential.signature)
    query = with_own_name(credential.agent, operation.own_query, _parse_query(request))
    if operation.query is not None:
        inputs["query"] = _validate(operation.query, query, "query")
    elif query:
        raise _bad_request("query", f"{next(iter(query))}: no parameters allowed")
    if operation.body is not None:
        given = await read_body(await body_of(request))
        document = with_own_name(credential.agent, operation.own_body, given)
        inputs["body"] = _validate(operation.body, _convert_whole_numbers(document), "body", strict=True)
    return inputs


def _parse_query(request: web.Request) -> dict[str, str]:
    if not request.query_string:
        return {}
    query = dict(request.query)
    if len(query) < len(request.query):
        raise _bad_request("query", "parameters must be unique")
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
        f"see {DOCUMENT}",
    )


def _link_to_next(request: web.Request, answer: Any) -> dict[str, str]:
    if request.method != "GET" or not isinstance(answer, Page) or answer.next is None:
        return {}
    query = urlencode({**request.query, "cursor": answer.next})
    return {"Link": f'<{request.path}?{query}>; rel="next"'}


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


# --- streamed answers ----------------------------------------------------------------------------


async def send_stream(request: web.Request, answer: JsonLines | Content) -> web.StreamResponse:
    """Send an answer piece by piece; abort the connection if it fails midway, so it can't seem complete."""
    headers = {"Content-Type": JSON_LINES, "Cache-Control": "no-store"}
    if isinstance(answer, Content):
        headers |= {"Content-Type": BYTES, "Content-Length": str(answer.size), **_NEVER_SHOWN}
    response = web.StreamResponse(headers=headers)
    async with aclosing(answer.parts) as parts:
        first = await anext(
            parts
        )  # an error before the first piece is still answered with a problem document
        try:
            await response.prepare(request)
            await _send(request, response, first, parts)
        except MeshError as error:
            _log.warning("answer aborted: %s", error.line)
        except (ConnectionError, TimeoutError):
            _log.info("client did not read the whole answer: remote=%s", request.remote)
        except Exception:
            _log.exception("answer aborted by a bug")
        else:
            return response
    if request.transport is not None:
        request.transport.abort()
    return response


async def _send(
    request: web.Request,
    response: web.StreamResponse,
    lines: list[bytes],
    more: AsyncGenerator[list[bytes], None],
) -> None:
    while True:
        part = memoryview(b"".join(lines))
        for at in range(0, len(part), _PIECE_BYTES):
            async with asyncio.timeout(_WRITE_TIMEOUT_S):
                await response.write(part[at : at + _PIECE_BYTES])
            mark_active(request)
        lines = await anext(more, [])
        if not lines:
            return
