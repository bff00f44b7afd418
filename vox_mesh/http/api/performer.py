"""The performer: one operation for a credential, with all checks, however the request came.

The HTTP API and the tools of MCP use the same one: an agent may do neither more nor less through either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from http import HTTPStatus
from typing import Any, Final, TypeVar

from aiohttp import web
from pydantic import BaseModel, TypeAdapter, ValidationError

from vox_mesh.errors import ApprovalPending, MeshError
from vox_mesh.http.access import Access, Credential, Scope, performing_with
from vox_mesh.http.admission import Admission
from vox_mesh.http.api.encoding import Redact
from vox_mesh.http.api.operations import Operation, RequestModel
from vox_mesh.http.limits import Quotas
from vox_mesh.http.principals.needs import Need
from vox_mesh.http.principals.own_names import check_headers, refuse_people, with_own_name
from vox_mesh.http.problems import Problem, problem_of
from vox_mesh.http.requests import RequestScope
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.acting import acting_as, acting_as_principal
from vox_mesh.views.redaction import redacted_json

T = TypeVar("T")

Respond = Callable[[Any, Redact | None], Awaitable[T]]
"""Makes the response from an answer, and from what redacts it for its reader."""

AGENT_HEADER: Final = "Vox-Agent"
DOCUMENT: Final = "/v1/openapi.json"
_EXACT: Final = 2**53


class OperationRequest(ABC):
    """The inputs of a request, read in the order in which they are checked."""

    client: web.Request | None = None
    """With whose connection the work ends."""

    @property
    @abstractmethod
    def path(self) -> Mapping[str, str]:
        """The path parameters."""

    @property
    @abstractmethod
    def agents(self) -> Sequence[str]:
        """The agents that the client says it acts for: one, or none."""

    @abstractmethod
    async def read_query(self, credential: Credential) -> dict[str, Any]:
        """Return the query parameters."""

    @abstractmethod
    async def read_body(self) -> Any:
        """Return the JSON of the body."""


class Performer:
    """Performs operations on a mesh, and refuses what a credential does not allow."""

    def __init__(
        self,
        mesh: MeshServices,
        access: Access,
        quotas: Quotas | None = None,
        admission: Admission | None = None,
    ) -> None:
        self.mesh = mesh
        self.access = access
        self.admission = admission or Admission()
        self._quotas = quotas
        self._scope = RequestScope()
        self._adapters: dict[str, dict[str, TypeAdapter[Any]]] = {}

    def end_waiting(self) -> None:
        """Cancel all waiting requests."""
        self._scope.end_waiting()

    async def perform(
        self, operation: Operation, credential: Credential, request: OperationRequest, respond: Respond[T]
    ) -> T:
        """Perform an operation and return its response. Raises the problem if it is refused or fails."""
        self.access.permit(credential, operation.label, operation.scope)
        with self._recorded(credential, operation):
            values = await self._read_inputs(operation, credential, request)
            if operation.need.is_signed and credential.signature is None:
                raise _signature_needed()
            refusal = await self._refusal_unless_own(credential, operation.need, values)
            await self._count(credential, operation, values.get("body"))
            async with self.admission.place(operation.load_of(values.values()), credential):
                if refusal is not None and not await operation.need.allows_own(
                    self.mesh, credential.agent, values
                ):
                    await self._check_again(credential, operation.need, values)
                with performing_with(credential), _acting(credential, request):
                    answer = await self._answer(operation, request, values)
                    return await respond(answer, _redaction(credential, operation))

    async def _answer(
        self, operation: Operation, request: OperationRequest, values: Mapping[str, Any]
    ) -> Any:
        undo = None if operation.undo is None else partial(operation.undo, self.mesh)
        work = operation.work(self.mesh, **values)
        return await self._scope.do(request.client, work, operation.takes_s, waits=operation.waits, undo=undo)

    async def _read_inputs(
        self, operation: Operation, credential: Credential, request: OperationRequest
    ) -> dict[str, Any]:
        """Return the validated inputs, with the name of the agent or the person that is authenticated."""
        adapters = self._adapters_of(operation)
        named = _with_own_name(credential, operation, operation.own_path, dict(request.path))
        check_headers(credential, request.agents, AGENT_HEADER)
        values = {name: _check_name(adapters[name], named[name], name) for name in adapters}
        query = await request.read_query(credential)
        query = _with_own_name(credential, operation, operation.own_query, query)
        if operation.query is not None:
            values["query"] = _validate(operation.query, query, "query")
        elif query:
            raise bad_request("query", f"{next(iter(query))}: no parameters allowed")
        if operation.body is not None:
            document = _with_own_name(credential, operation, operation.own_body, await request.read_body())
            values["body"] = _validate(operation.body, _convert_whole_numbers(document), "body", strict=True)
        return values

    def _adapters_of(self, operation: Operation) -> dict[str, TypeAdapter[Any]]:
        found = self._adapters.get(operation.name)
        if found is None:
            found = {name: TypeAdapter[Any](kind) for name, kind in operation.names.items()}
            self._adapters[operation.name] = found
        return found

    async def _refusal_unless_own(
        self, credential: Credential, need: Need, values: Mapping[str, Any]
    ) -> Problem | None:
        """Raise 403 if an agent lacks a grant; return it if none is needed for things of its own."""
        try:
            self.access.check_grant(credential, partial(need.check, inputs=values))
        except Problem as refusal:
            if need.is_own is not None:
                return refusal
            if need.is_for_owner:
                raise
            await self._check_again(credential, need, values)
        return None

    async def _check_again(self, credential: Credential, need: Need, values: Mapping[str, Any]) -> None:
        """Raise 403 if an agent lacks a grant also now: it may have been issued a moment ago."""
        await self.access.check_grant_again(credential, partial(need.check, inputs=values))

    @contextmanager
    def _recorded(self, credential: Credential, operation: Operation) -> Iterator[None]:
        """Record what an agent is refused."""
        try:
            yield
        except (Problem, MeshError) as error:
            problem = problem_of(error) if isinstance(error, MeshError) else error
            if problem.status == HTTPStatus.FORBIDDEN and not isinstance(error, ApprovalPending):
                self.access.note_refusal(credential, operation.label, problem.code)
            raise

    async def _count(self, credential: Credential, operation: Operation, body: Any) -> None:
        """Count the request and its items. Raises 429 if there are too many."""
        if self._quotas is None:
            return
        is_read = operation.scope is Scope.READ
        items = body.item_count if isinstance(body, RequestModel) and not is_read else 1
        self._quotas.take(credential.account, items, is_read=is_read)
        if operation.opens == "jobs":
            await self._quotas.open_items("jobs", items, self.mesh.jobs.queries.count_open)
        elif operation.opens == "messages":
            await self._quotas.open_items("messages", items, self.mesh.messages.queries.count_open)


def _with_own_name(credential: Credential, operation: Operation, names: Collection[str], given: Any) -> Any:
    """Return the given values with the only name of the credential. People also read about others.

    Raises 403 if another name is given, or that of a person without a session.
    """
    if operation.method == "GET":
        return with_own_name(credential.agent, names, given)
    if credential.session is None:
        refuse_people(names, given)
    return with_own_name(credential.own_name, names, given)


def _redaction(credential: Credential, operation: Operation) -> Redact | None:
    """Return what hides the parts of an answer that the credential may not see, or `None`."""
    is_redacted = credential.is_redacted or (credential.agent is not None and operation.need.is_read)
    return partial(redacted_json, reader=credential.agent) if is_redacted else None


def _acting(credential: Credential, request: OperationRequest) -> AbstractContextManager[None]:
    """Have the log name the person or the agent that is authenticated, or one that the owner's side names."""
    if credential.session is not None:
        return acting_as(credential.session.agent)
    if credential.agent is not None:
        return acting_as_principal(credential.agent)
    return acting_as(request.agents[0]) if request.agents else nullcontext()


def _signature_needed() -> Problem:
    detail = "agent must sign this request with its key"
    return Problem(HTTPStatus.FORBIDDEN, "signature_needed", detail, "sign it; no bearer or token is enough")


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
        raise bad_request(where, _first_fault(error)) from None


def _check_name(adapter: TypeAdapter[Any], text: str, name: str) -> Any:
    try:
        return adapter.validate_python(text)
    except ValidationError as error:
        raise bad_request("path", f"{name}: {_first_fault(error)}") from None


def _first_fault(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part)[:64] for part in first["loc"])
    fault = first["msg"].removeprefix("Value error, ")
    return f"{where}: {fault}" if where else fault


def bad_request(where: str, fault: str) -> Problem:
    """Return the problem with an input of a request."""
    return Problem(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        f"bad_{where}",
        f"in the {where}: {fault}",
        f"see {DOCUMENT}",
    )
