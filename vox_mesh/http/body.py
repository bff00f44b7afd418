"""Request bodies: JSON of a bounded size, read within a bounded time."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from vox_mesh.http.problems import Problem

MAX_BODY_BYTES: Final = 2 * 2**20
READ_S: Final = 5.0


async def body_of(request: web.Request, read_s: float = READ_S) -> bytes:
    """Return the body, or raise the problem with it."""
    if request.content_type != "application/json":
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "content_type", "send application/json")
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "content_encoding", "send it without an encoding")
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise _too_large()
    try:
        async with asyncio.timeout(read_s):
            return await request.read()
    except TimeoutError:
        detail = f"the body did not come within {read_s:g} s"
        raise Problem(HTTPStatus.REQUEST_TIMEOUT, "too_slow", detail) from None
    except web.HTTPRequestEntityTooLarge:
        raise _too_large() from None
    except (OSError, HttpProcessingError, web.RequestPayloadError):
        raise Problem(HTTPStatus.BAD_REQUEST, "incomplete", "the body did not come as it should") from None


def _too_large() -> Problem:
    return Problem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "too_large",
        f"a request has at most {MAX_BODY_BYTES} bytes",
        "send it in parts",
    )
