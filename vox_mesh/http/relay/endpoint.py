"""`POST /v1/a2a/deliver`: another node delivers messages."""

from __future__ import annotations

import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final

import orjson
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vox_mesh.http.access import Access, Scope
from vox_mesh.http.limits import RateLimiter
from vox_mesh.http.problems import Problem
from vox_mesh.http.relay.agent_signatures import AGENT_SIGNATURES, with_agent_signatures
from vox_mesh.http.requests import READ_S, body_of, read_body
from vox_mesh.messages.relay_inbound import Reception
from vox_mesh.model.base.keys import MAX_LENGTH
from vox_mesh.model.messages.records import MAX_NAME, MAX_PAYLOAD_BYTES, WIRE_FIELDS, Message

PATH: Final = "/v1/a2a/deliver"
MAX_MESSAGES: Final = 64
NODE: Final = "Vox-Mesh-Node"
"""The node a request is meant for."""

FROM: Final = "Vox-Mesh-From"
"""The node a request comes from."""

STORED: Final = "Vox-Mesh-Stored"
"""`1` if the sender knows that the messages are in the database."""

ORDER: Final = "Vox-Mesh-Order"
"""The sending node's signature of the order of the messages."""

FOLLOWS: Final = "Vox-Mesh-Follows"
"""In the response: `1` if the node learns of each commit at once, and so finds stored messages."""

_MAX_MS: Final = 2**53
_FIELDS: Final = frozenset({*WIRE_FIELDS, "after"})

_Text = Annotated[str, Field(max_length=MAX_NAME)]
_Long = Annotated[str, Field(max_length=2 * MAX_NAME)]
_Ms = Annotated[int, Field(ge=0, lt=_MAX_MS)]


class WireMessage(BaseModel):
    """A message in wire format: the columns its sender wrote, and the id of its previous message."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    message_uuid: _Text
    sender_agent: _Text
    receiver_agent: _Text
    msg_type: _Text
    payload: Annotated[str, Field(max_length=MAX_PAYLOAD_BYTES)]
    priority: Annotated[int, Field(ge=0, le=3)]
    thread_id: _Text | None = None
    correlation_id: _Text | None = None
    reply_to: _Text | None = None
    expires_ms: _Ms | None = None
    ack_by_ms: _Ms | None = None
    max_attempts: Annotated[int, Field(ge=1, le=1_000)]
    hlc: _Long
    sender_node: _Text
    sender_incarnation: Annotated[int, Field(ge=1, lt=_MAX_MS)] | None = None
    traceparent: _Text | None = None
    signature: Annotated[str, Field(max_length=MAX_LENGTH)]
    after: _Text | None = None

    def message(self) -> Message:
        """Return the message."""
        return Message(**{name: getattr(self, name) for name in (*WIRE_FIELDS, "after")})


def wire(message: Message) -> dict[str, Any]:
    """Return a message in wire format."""
    return {**dict(zip(WIRE_FIELDS, message, strict=False)), "after": message.after}


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """Requests per second of each peer, concurrent requests, and seconds to read a body."""

    per_second: float = 500.0
    at_once: int = 64
    read_s: float = READ_S


class Delivery:
    """Receives messages from other nodes."""

    def __init__(
        self, node_id: str, reception: Reception, access: Access, limits: RelayLimits | None = None
    ) -> None:
        self._node_id = node_id
        self._reception = reception
        self._access = access
        self._limits = RelayLimits() if limits is None else limits
        self._rates = RateLimiter(self._limits.per_second, time.monotonic)
        self._at_once = 0

    def add_to(self, app: web.Application) -> None:
        """Register the route."""
        app.router.add_post(PATH, self._deliver)

    async def _deliver(self, request: web.Request) -> web.Response:
        self._access.check(request, Scope.RELAY)
        self._rates.check(request.remote, request.headers.get(FROM, "")[:MAX_NAME])
        self._refuse_misdirected(request)
        if self._at_once >= self._limits.at_once:
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "overloaded",
                f"concurrent deliveries must be at most {self._limits.at_once}",
            )
        self._at_once += 1
        try:
            messages = _parse_messages(await read_body(await body_of(request, self._limits.read_s)))
            messages = with_agent_signatures(messages, request.headers.get(AGENT_SIGNATURES))
            stored = request.headers.get(STORED) == "1"
            await self._reception.take(messages, stored=stored, order=request.headers.get(ORDER))
        finally:
            self._at_once -= 1
        accepted = {"message_uuids": [message.message_uuid for message in messages]}
        headers = {FOLLOWS: "1"} if self._reception.follows_commits else None
        return web.Response(body=orjson.dumps(accepted), content_type="application/json", headers=headers)

    def _refuse_misdirected(self, request: web.Request) -> None:
        target = request.headers.get(NODE)
        if target is None:
            raise Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                "node_missing",
                f"header {NODE} must name the recipient node",
            )
        if target != self._node_id:
            raise Problem(
                HTTPStatus.MISDIRECTED_REQUEST,
                "misdirected",
                f"request is for another node, this is {self._node_id}",
                "look up the node's address again",
            )


def _parse_messages(document: Any) -> list[Message]:
    """Return the messages of a body, one or several."""
    documents = document if isinstance(document, list) else [document]
    if not 1 <= len(documents) <= MAX_MESSAGES:
        raise _unprocessable(
            "bad_count", f"messages must be between 1 and {MAX_MESSAGES}, got {len(documents)}"
        )
    messages = []
    for number, each in enumerate(documents):
        if not isinstance(each, dict) or not _FIELDS.issuperset(each):  # there may be many others
            raise _unprocessable(
                "bad_message", f"message {number} must be an object with fields of a message only"
            )
        try:
            messages.append(WireMessage.model_validate(each).message())
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise _unprocessable("bad_message", f"message {number}: {where}: {first['msg']}") from None
    ids = {message.message_uuid for message in messages}
    if len(ids) < len(messages):
        raise _unprocessable("doubled", "message ids must be unique")
    return messages


def _unprocessable(code: str, detail: str) -> Problem:
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, code, detail)
