"""Answers that are sent as they come: of any length, and never all of it in memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from aiohttp import web

from vox_mesh.errors import MeshError
from vox_mesh.http.api.openapi import JSON_LINES
from vox_mesh.http.api.operations import JsonLines
from vox_mesh.http.connections import touched

_log = logging.getLogger(__name__)

_PIECE_BYTES: Final = 64 * 2**10
_TAKE_S: Final = 10.0
"""For a piece to be taken."""


async def sent_as_it_comes(request: web.Request, answer: JsonLines) -> web.StreamResponse:
    """Send an answer; one that can't be sent to its end is broken off, so that nobody takes it for whole."""
    headers = {"Content-Type": JSON_LINES, "Cache-Control": "no-store"}
    response = web.StreamResponse(headers=headers)
    async with aclosing(answer.parts) as parts:
        first = await anext(parts)  # if there is none, that is a problem that can still be told
        await response.prepare(request)
        try:
            await _send(request, response, first, parts)
        except MeshError as error:
            _log.warning("an answer was broken off: %s", error.line)
        except (ConnectionError, TimeoutError):
            _log.info("%s did not take all of an answer", request.remote)
        except Exception:
            _log.exception("an answer was broken off: this is a bug")
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
            async with asyncio.timeout(_TAKE_S):
                await response.write(part[at : at + _PIECE_BYTES])
            touched(request)
        lines = await anext(more, [])
        if not lines:
            return
