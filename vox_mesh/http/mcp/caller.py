"""The caller of tools at a node: performs operations with the credential of its request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from vox_mesh.errors import MeshError
from vox_mesh.hosts.mcp.caller import OperationFailed
from vox_mesh.http.access import Credential
from vox_mesh.http.api.api import OPERATIONS
from vox_mesh.http.api.encoding import Redact, encoded
from vox_mesh.http.api.performer import OperationRequest, Performer
from vox_mesh.http.problems import Problem, problem_of
from vox_mesh.store.slices import in_slices
from vox_mesh.views.redaction import without_env

_BY_NAME: Final = {operation.name: operation for operation in OPERATIONS if operation.is_json}


class CredentialCaller:
    """Performs operations for a credential; of the owner's side, for the agent that it names."""

    def __init__(self, performer: Performer, credential: Credential, named: str | None) -> None:
        self._performer = performer
        self._credential = credential
        self._named = named

    @property
    def agent(self) -> str | None:
        """The agent it acts for."""
        return self._credential.agent or self._named

    @property
    def now_ms(self) -> int:
        """The time of the mesh."""
        return self._performer.mesh.clock.now_ms

    async def perform(
        self,
        operation: str,
        *,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
    ) -> Any:
        """Perform an operation, and return the JSON of its answer. Raises `OperationFailed`."""
        named = () if self._named is None else (self._named,)
        request = ToolRequest(path or {}, named, query or {}, {} if body is None else body)
        try:
            return await self._performer.perform(_BY_NAME[operation], self._credential, request, _as_json)
        except MeshError as error:
            raise _failed(problem_of(error)) from None
        except Problem as problem:
            raise _failed(problem) from None


class ToolRequest(OperationRequest):
    """The inputs of an operation that a tool performs."""

    def __init__(
        self, path: Mapping[str, str], agents: Sequence[str], query: Mapping[str, Any], body: Any
    ) -> None:
        self._path = path
        self._agents = agents
        self._query = query
        self._body = body

    @property
    def path(self) -> Mapping[str, str]:
        """The path parameters."""
        return self._path

    @property
    def agents(self) -> Sequence[str]:
        """The agent that the client says it acts for."""
        return self._agents

    async def read_query(self, _: Credential) -> dict[str, Any]:
        """Return the query parameters."""
        return dict(self._query)

    async def read_body(self) -> Any:
        """Return the JSON of the body."""
        return self._body


async def _as_json(answer: Any, redact: Redact | None) -> Any:
    """Return the JSON of an answer without the variables of jobs: it goes to a model."""
    return without_env(orjson.loads(b"".join(await in_slices(encoded(answer, redact)))))


def _failed(problem: Problem) -> OperationFailed:
    return OperationFailed(
        problem.code, problem.detail, problem.hint, orjson.loads(orjson.dumps(problem.more))
    )
