"""Operations of the service, declared once for its routes and its OpenAPI document.

An operation is a function. Its annotations declare its inputs (`query` and `body` are models, all other names
are path parameters) and its answer. The first line of its docstring is its summary.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal, TypeVar, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from vox_mesh.http.access import Scope
from vox_mesh.http.admission import Load
from vox_mesh.http.principals.needs import READS, Need, need_of
from vox_mesh.http.principals.own_names import own_fields, own_names
from vox_mesh.model.base.durations import milliseconds
from vox_mesh.runtime.services import MeshServices

Work = Callable[..., Coroutine[Any, Any, Any]]
Undo = Callable[[MeshServices, Any], Awaitable[None]]
Function = TypeVar("Function", bound=Work)
Noun = Literal["jobs", "messages"]

_NAME: Final = re.compile(r"\{(\w+)\}")
_IF_IT_DOES_NOT_WAIT: Final = {Load.WAIT: Load.READ, Load.LOCK_WAIT: Load.WRITE, Load.TAKE: Load.WRITE}
CALL_S: Final = 30.0
_MAX_S: Final = 365 * 86_400


class RequestModel(BaseModel):
    """The input of a request. Unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @property
    def item_count(self) -> int:
        """The number of items that it writes, for the rate of its credential."""
        return 1

    @property
    def waits_s(self) -> float:
        """How long it may wait for something to happen."""
        return 0.0


def _seconds(value: object) -> float:
    time_ms = milliseconds(value)
    if time_ms > _MAX_S * 1_000:
        raise ValueError("must be at most a year")
    return time_ms / 1_000


Seconds = Annotated[
    float,
    BeforeValidator(_seconds),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "string",
                    "pattern": r"^([0-9]{1,9}ms|[0-9]{1,7}s|[0-9]{1,5}m|[0-9]{1,3}h|[0-9]{1,2}d"
                    r"|[0-9]{1,3}h[0-9]{1,2}m|PT[0-9]{1,3}[HMS])$",
                },
                {"type": "number", "minimum": 0, "maximum": _MAX_S},
            ],
            "examples": ["30s", 30],
        }
    ),
]
"""A duration such as 30s, in seconds."""

MAX_WAIT_S: Final = 60
Wait = Annotated[
    Seconds,
    Field(le=MAX_WAIT_S),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0, "maximum": MAX_WAIT_S},
                {"type": "string", "pattern": "^([0-9]{1,4}ms|[1-5]?[0-9]s)$"},
            ],
            "examples": ["30s", 30],
        }
    ),
]
"""How long to wait, at most a minute."""

Text = Annotated[str, Field(min_length=1, max_length=1_024)]
AgentName = Annotated[str, Field(min_length=1, max_length=128)]


@dataclass(frozen=True)
class JsonLines:
    """An answer of JSON lines of any length, sent as they are produced."""

    parts: AsyncGenerator[list[bytes], None]


@dataclass(frozen=True)
class Content:
    """An answer of bytes, sent as they are read. Its type is never that of a page or script."""

    parts: AsyncGenerator[list[bytes], None]
    size: int


@dataclass(frozen=True)
class Operation:
    """One operation."""

    method: str
    path: str
    noun: str
    scope: Scope
    work: Work
    names: dict[str, Any]
    query: type[BaseModel] | None
    body: type[BaseModel] | None
    answer: Any
    status: HTTPStatus
    takes_s: float
    load: Load
    """What it costs the node."""

    need: Need
    """What an agent must be granted for it."""

    undo: Undo | None = None
    """Called with an answer that the client is no longer there to receive."""

    opens: Noun | None = None
    """What it adds to the mesh that stays open."""

    @cached_property
    def own_path(self) -> frozenset[str]:
        """The path parameters that name the agent that acts."""
        return own_names(self.names)

    @cached_property
    def own_query(self) -> frozenset[str]:
        """The parameters that name the agent that acts."""
        return own_fields(self.query)

    @cached_property
    def own_body(self) -> frozenset[str]:
        """The fields of the body that name the agent that acts."""
        return own_fields(self.body)

    @property
    def name(self) -> str:
        """Its name in the document."""
        return self.work.__name__

    @property
    def label(self) -> str:
        """Its method and path, without names."""
        return f"{self.method} {self.path}"

    @property
    def waits(self) -> bool:
        """Whether it may take long only because it waits."""
        return self.load in _IF_IT_DOES_NOT_WAIT

    def load_of(self, inputs: Iterable[Any]) -> Load:
        """Return what a request with these inputs costs the node."""
        waits = any(isinstance(each, RequestModel) and each.waits_s > 0 for each in inputs)
        return self.load if waits else _IF_IT_DOES_NOT_WAIT.get(self.load, self.load)

    @property
    def summary(self) -> str:
        """Its summary."""
        return (inspect.getdoc(self.work) or "").partition("\n")[0]

    @property
    def is_json(self) -> bool:
        """Whether its answer is one JSON document."""
        return self.answer not in (JsonLines, Content)


_declared: Final[list[Operation]] = []


def declared_operations() -> Sequence[Operation]:
    """Return all operations of all nouns, in the order in which they were declared."""
    return _declared


class Operations:
    """The operations on one noun."""

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self.all: list[Operation] = []

    def get(
        self,
        path: str,
        *,
        scope: Scope = Scope.READ,
        takes_s: float = CALL_S,
        load: Load = Load.READ,
        needs: str | Need = READS,
    ) -> Callable[[Function], Function]:
        """Register an operation that reads; what can't be redacted needs more than a read token."""
        return self._add("GET", path, needs, scope, HTTPStatus.OK, takes_s, load)

    def post(
        self,
        path: str,
        *,
        needs: str | Need,
        status: HTTPStatus = HTTPStatus.OK,
        scope: Scope = Scope.WRITE,
        takes_s: float = CALL_S,
        load: Load = Load.WRITE,
        undo: Undo | None = None,
        opens: Noun | None = None,
    ) -> Callable[[Function], Function]:
        """Register an operation that acts; `needs` is what an agent must be granted for it."""
        return self._add("POST", path, needs, scope, status, takes_s, load, undo, opens)

    def put(self, path: str, *, needs: str | Need) -> Callable[[Function], Function]:
        """Register an idempotent operation that sets a state."""
        return self._add("PUT", path, needs)

    def patch(self, path: str, *, needs: str | Need) -> Callable[[Function], Function]:
        """Register an operation that changes the named fields only."""
        return self._add("PATCH", path, needs)

    def delete(self, path: str, *, needs: str | Need) -> Callable[[Function], Function]:
        """Register an operation that removes something."""
        return self._add("DELETE", path, needs)

    def _add(
        self,
        method: str,
        path: str,
        needs: str | Need,
        scope: Scope = Scope.WRITE,
        status: HTTPStatus = HTTPStatus.OK,
        takes_s: float = CALL_S,
        load: Load = Load.WRITE,
        undo: Undo | None = None,
        opens: Noun | None = None,
    ) -> Callable[[Function], Function]:
        def add(work: Function) -> Function:
            hints = get_type_hints(work, include_extras=True)
            answer = hints.pop("return")
            hints.pop("mesh")
            query, body = hints.pop("query", None), hints.pop("body", None)
            assert list(hints) == _NAME.findall(path), f"{work.__name__} takes other names than {path}"
            operation = Operation(
                *(method, path, self.noun, scope, work, hints, query, body, answer, status),
                *(takes_s, load, need_of(needs), undo, opens),
            )
            self.all.append(operation)
            _declared.append(operation)
            return work

        return add
