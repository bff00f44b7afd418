"""The API: serves all operations. Answers of any length are streamed, never held in memory as a whole."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlencode

import orjson
from aiohttp import web

from vox_mesh.errors import MeshError
from vox_mesh.http.access import Credential, Scope
from vox_mesh.http.admission import Load
from vox_mesh.http.api.agents.agents import AGENTS
from vox_mesh.http.api.agents.hook_events import HOOK_EVENTS
from vox_mesh.http.api.agents.hooks import HOOKS
from vox_mesh.http.api.agents.mcp_tasks import TASKS
from vox_mesh.http.api.agents.me import ME
from vox_mesh.http.api.conflicts import CONFLICTS
from vox_mesh.http.api.encoding import Redact, encoded, encoded_at_once
from vox_mesh.http.api.grants.approvals import APPROVALS
from vox_mesh.http.api.grants.grants import GRANTS
from vox_mesh.http.api.jobs.artifacts import ARTIFACTS
from vox_mesh.http.api.jobs.graphs import GRAPHS
from vox_mesh.http.api.jobs.job_actions import ACTIONS
from vox_mesh.http.api.jobs.jobs import JOBS
from vox_mesh.http.api.jobs.scheduling import CRONS, KINDS, RULES, WORKERS
from vox_mesh.http.api.jobs.work import WORK
from vox_mesh.http.api.jobs.workflows import WORKFLOWS
from vox_mesh.http.api.locks import LOCKS
from vox_mesh.http.api.mesh.attention import ATTENTION
from vox_mesh.http.api.mesh.database import DATABASE
from vox_mesh.http.api.mesh.find import FIND
from vox_mesh.http.api.mesh.health import HEALTH
from vox_mesh.http.api.messages import MESSAGES
from vox_mesh.http.api.nodes import NODES, OWNER_COMMANDS, ROLES
from vox_mesh.http.api.openapi import BYTES, JSON_LINES, document_of
from vox_mesh.http.api.operations import Content, JsonLines, Operation
from vox_mesh.http.api.oplog import OPLOG
from vox_mesh.http.api.pages import Page
from vox_mesh.http.api.performer import AGENT_HEADER, DOCUMENT, OperationRequest, Performer, bad_request
from vox_mesh.http.api.rhythm.help import HELP
from vox_mesh.http.api.rhythm.rhythm import BUDGETS, RHYTHM
from vox_mesh.http.api.schemas import SCHEMAS
from vox_mesh.http.connections import mark_active
from vox_mesh.http.principals.digests import check_digest
from vox_mesh.http.principals.refusals import operation_of
from vox_mesh.http.problems import Handler, Problem
from vox_mesh.http.requests import body_of, read_body
from vox_mesh.store.slices import in_slices

_log = logging.getLogger(__name__)

_NOUNS: Final = (
    *(NODES, ROLES, AGENTS, HOOKS, HOOK_EVENTS, GRANTS, APPROVALS, LOCKS, OPLOG, CONFLICTS, MESSAGES),
    *(ME, GRAPHS, JOBS, ACTIONS, WORK, ARTIFACTS, TASKS),
    *(
        WORKFLOWS,
        CRONS,
        RULES,
        KINDS,
        WORKERS,
        RHYTHM,
        HELP,
        BUDGETS,
        SCHEMAS,
        DATABASE,
        ATTENTION,
        HEALTH,
        FIND,
    ),
)
OPERATIONS: Final[tuple[Operation, ...]] = tuple(operation for noun in _NOUNS for operation in noun.all)
"""All operations, in the order of the document."""

_JSON: Final = "application/json"
_PIECE_BYTES: Final = 64 * 2**10
_NEVER_SHOWN: Final = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff"}
"""The headers of content that agents have made: a browser must not run it."""

_WRITE_TIMEOUT_S: Final = 10.0
"""The timeout for the client to read a piece of a streamed answer."""


class Api:
    """Serves the operations on a mesh."""

    def __init__(self, performer: Performer) -> None:
        self._performer = performer
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

    def _handler(self, operation: Operation) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            credential = await self._performer.access.identify(request, operation.scope)

            async def respond(answer: Any, redact: Redact | None) -> web.StreamResponse:
                return await _respond_with(request, operation, answer, redact)

            return await self._performer.perform(operation, credential, HttpRequest(request), respond)

        return handle

    def _refusing(self, command: str) -> Handler:
        """Return a handler for an operation of the owner: no token allows it."""

        async def refuse(request: web.Request) -> web.StreamResponse:
            access = self._performer.access
            credential = await access.identify(request, Scope.WRITE)
            access.note_refusal(credential, operation_of(request), "owner_only")
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "owner_only",
                "this is done with the owner's key, on the owner's machine, and not over HTTP",
                f"run `{command}` there",
            )

        return refuse

    async def _describe(self, request: web.Request) -> web.StreamResponse:
        credential = await self._performer.access.identify(request, Scope.READ)
        async with self._performer.admission.place(Load.READ, credential):
            if self._document is None:
                self._document = await asyncio.to_thread(lambda: orjson.dumps(document_of(OPERATIONS)))
        return _respond(request, self._document, HTTPStatus.OK)


class HttpRequest(OperationRequest):
    """The inputs of an HTTP request."""

    def __init__(self, request: web.Request) -> None:
        self.client: web.Request = request

    @property
    def path(self) -> Mapping[str, str]:
        """The path parameters."""
        return self.client.match_info

    @property
    def agents(self) -> Sequence[str]:
        """The agents in the header."""
        return self.client.headers.getall(AGENT_HEADER, ())

    async def read_query(self, credential: Credential) -> dict[str, Any]:
        """Return the query parameters. Raises the problem if the digest of a signed body is wrong."""
        await check_digest(self.client, credential.signature)
        return _parse_query(self.client)

    async def read_body(self) -> Any:
        """Return the JSON of the body."""
        return await read_body(await body_of(self.client))


def _refuse_other_methods(methods: Iterable[str]) -> Handler:
    """Return a handler that refuses all other methods of a path."""

    async def refuse(request: web.Request) -> web.StreamResponse:
        raise web.HTTPMethodNotAllowed(request.method, methods)

    return refuse


def _parse_query(request: web.Request) -> dict[str, str]:
    if not request.query_string:
        return {}
    query = dict(request.query)
    if len(query) < len(request.query):
        raise bad_request("query", "parameters must be unique")
    return query


async def _respond_with(
    request: web.Request, operation: Operation, answer: Any, redact: Redact | None
) -> web.StreamResponse:
    if isinstance(answer, JsonLines | Content):
        return await send_stream(request, answer)
    body = None if redact is not None else encoded_at_once(answer)
    if body is None:
        body = b"".join(await in_slices(encoded(answer, redact)))
    return _respond(request, body, operation.status, _link_to_next(request, answer))


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
