"""Problem documents: every error that leaves the service is one, with a stable `code`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

import orjson
from aiohttp import web

from vox_mesh.errors import (
    BadValue,
    DatabaseFault,
    DatabaseUnavailable,
    MeshError,
    MessageExpired,
    MessageTaken,
    OutcomeUnknown,
    Overloaded,
    SenderRefused,
    SpoolFull,
    StaleIncarnation,
    StoreClosed,
    Unauthorized,
)

_log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CONTENT_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 1

_STATUS: Final = (
    ((BadValue,), HTTPStatus.UNPROCESSABLE_ENTITY),
    ((SenderRefused,), HTTPStatus.FORBIDDEN),
    ((MessageExpired, MessageTaken, StaleIncarnation), HTTPStatus.CONFLICT),
    (
        (
            *(DatabaseFault, DatabaseUnavailable, OutcomeUnknown),
            *(Overloaded, SpoolFull, StoreClosed, Unauthorized),
        ),
        HTTPStatus.SERVICE_UNAVAILABLE,
    ),
)


class Problem(Exception):
    """An answer that is a problem document."""

    def __init__(self, status: HTTPStatus, code: str, detail: str, hint: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.hint = hint

    @property
    def response(self) -> web.Response:
        """The document."""
        document = {
            "type": "about:blank",
            "title": self.status.phrase,
            "status": self.status.value,
            "code": self.code,
            "detail": self.detail,
        }
        if self.hint:
            document["hint"] = self.hint
        response = web.Response(
            status=self.status, body=orjson.dumps(document), headers={"Content-Type": CONTENT_TYPE}
        )
        if self.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
            response.headers["Retry-After"] = str(RETRY_AFTER_S)
        if self.status == HTTPStatus.UNAUTHORIZED:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response


def problem_of(error: MeshError) -> Problem:
    """The problem that an error of the mesh is to a caller."""
    status = next((status for kinds, status in _STATUS if isinstance(error, kinds)), None)
    if status is None:
        _log.error("a request failed: %s", error.line)
        status = HTTPStatus.INTERNAL_SERVER_ERROR
    return Problem(status, error.code, str(error), error.hint)


@web.middleware
async def as_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever goes wrong into a problem document."""
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
        _log.exception("a request failed: %r %r", request.method, request.path)  # they are the caller's words
        return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "bug", "this is a bug; the log has more").response
