"""Problem documents: every error response is one, with a stable `code`."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final

import orjson
from aiohttp import web

from vox_mesh.errors import (
    AgentSignatureMissing,
    AgentSignatureWrong,
    AlreadyResolved,
    ApprovalNeeded,
    ApprovalPending,
    ArtifactDamaged,
    ArtifactNotKept,
    BadDocument,
    BadStatement,
    BadValue,
    ChainBroken,
    ClockOff,
    ConstraintFailed,
    Contended,
    DatabaseFault,
    DatabaseUnavailable,
    JobNotSucceeded,
    KeyRefused,
    LimitReached,
    LockHeld,
    LockLost,
    MergeClash,
    MeshError,
    MessageExpired,
    MessageTaken,
    NodeInUse,
    NotAuthentic,
    NotGranted,
    NotHelper,
    NotHolder,
    NotItsAgent,
    NotKnown,
    NotStrict,
    OutcomeUnknown,
    OverBudget,
    OverGrantBudget,
    Overloaded,
    PhaseOverrun,
    Refused,
    RowMoved,
    SenderRefused,
    SpoolFull,
    StaleIncarnation,
    StoreClosed,
    TakenElsewhere,
    ThreadClosed,
    TooLarge,
    Unauthorized,
    WrongBackend,
)
from vox_mesh.model.base.canonical import show_row
from vox_mesh.views.locks import HoldView

_log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CONTENT_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 1

_STATUS: Final = (
    ((NotKnown,), HTTPStatus.NOT_FOUND),
    ((TooLarge,), HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    ((BadStatement, BadValue), HTTPStatus.UNPROCESSABLE_ENTITY),
    (
        (AgentSignatureMissing, AgentSignatureWrong, ApprovalPending, NotItsAgent, SenderRefused),
        HTTPStatus.FORBIDDEN,
    ),
    ((OverGrantBudget,), HTTPStatus.CONFLICT),
    ((LimitReached,), HTTPStatus.TOO_MANY_REQUESTS),
    (
        (
            *(AlreadyResolved, ArtifactDamaged, ArtifactNotKept, ConstraintFailed, Contended, LockHeld),
            *(LockLost, MergeClash, MessageExpired, MessageTaken, NotHolder, Refused, RowMoved),
            *(
                JobNotSucceeded,
                NodeInUse,
                NotAuthentic,
                NotHelper,
                OverBudget,
                PhaseOverrun,
                StaleIncarnation,
                TakenElsewhere,
                ThreadClosed,
                WrongBackend,
            ),
        ),
        HTTPStatus.CONFLICT,
    ),
    (
        (
            *(ChainBroken, ClockOff, DatabaseFault, DatabaseUnavailable, KeyRefused, OutcomeUnknown),
            *(NotStrict, Overloaded, SpoolFull, StoreClosed, Unauthorized),
        ),
        HTTPStatus.SERVICE_UNAVAILABLE,
    ),
)
_NOT_ALLOWED: Final = frozenset(
    (
        *("not_the_owner", "not_the_coordinator", "own_request", "not_an_approver"),
        *(NotGranted.code, ApprovalNeeded.code),
    )
)
"""Refusal reasons that concern the caller's permissions, not the state."""


class Problem(Exception):
    """An error that is answered with a problem document."""

    def __init__(self, status: HTTPStatus, code: str, detail: str, hint: str = "", **more: Any) -> None:
        super().__init__(detail)
        self.more = more
        self.status = status
        self.code = code
        self.detail = detail
        self.hint = hint

    @property
    def response(self) -> web.Response:
        """The response with the problem document."""
        document: dict[str, Any] = {
            "type": "about:blank",
            "title": self.status.phrase,
            "status": self.status.value,
            "code": self.code,
            "detail": self.detail,
        }
        if self.hint:
            document["hint"] = self.hint
        document |= self.more
        response = web.Response(
            status=self.status, body=orjson.dumps(document), headers={"Content-Type": CONTENT_TYPE}
        )
        if self.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            retry_in_s = self.more.get("retry_in_s", RETRY_AFTER_S)
            response.headers["Retry-After"] = str(math.ceil(retry_in_s))
        if self.status == HTTPStatus.UNAUTHORIZED:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response


def problem_of(error: MeshError) -> Problem:
    """Return the problem for an error of the mesh."""
    status = next((status for kinds, status in _STATUS if isinstance(error, kinds)), None)
    if status is None:
        _log.error("request failed: %s", error.line)
        status = HTTPStatus.INTERNAL_SERVER_ERROR
    more: dict[str, Any] = {}
    if isinstance(error, Refused):
        more["reason"] = error.reason
        if error.reason in _NOT_ALLOWED:
            status = HTTPStatus.FORBIDDEN
    if isinstance(error, LimitReached) and error.retry_in_s is not None:
        more["retry_in_s"] = error.retry_in_s
    if isinstance(error, BadDocument):
        more["faults"] = error.faults
    if isinstance(error, ApprovalPending):
        more |= {"approval_id": error.approval_id, "expires_at": error.expires_at}
    if isinstance(error, TakenElsewhere):
        more["node_id"] = error.node_id
    if isinstance(error, RowMoved):
        more |= {"now": None if error.now is None else show_row(error.now), "onto": error.version}
    if isinstance(error, LockHeld):
        more["holders"] = [HoldView.of(holder) for holder in error.holders]
    return Problem(status, error.code, str(error), error.hint, **more)


@web.middleware
async def as_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every error of a handler into a problem document."""
    try:
        return await handler(request)
    except Problem as problem:
        return problem.response
    except MeshError as error:
        return problem_of(error).response
    except web.HTTPException as error:
        status = HTTPStatus(error.status)
        answer = Problem(status, status.name.lower(), status.description or status.phrase).response
        if "Allow" in error.headers:
            answer.headers["Allow"] = error.headers["Allow"]
        return answer
    except Exception:
        # Escaped, as the client chose both texts.
        _log.exception("request failed: method=%r path=%r", request.method, request.path)
        return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "bug", "internal error: see the node's log").response
