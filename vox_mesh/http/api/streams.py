"""Streamed answers of any length, never held in memory as a whole."""

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
from vox_mesh.http.connections import mark_active

_log = logging.getLogger(__name__)

_PIECE_BYTES: Final = 64 * 2**10
_WRITE_TIMEOUT_S: Final = 10.0
"""The timeout for the client to read a piece."""


async def send_stream(request: web.Request, answer: JsonLines) -> web.StreamResponse:
    """Send an answer piece by piece; abort the connection if it fails midway, so it can't seem complete."""
    headers = {"Content-Type": JSON_LINES, "Cache-Control": "no-store"}
    response = web.StreamResponse(headers=headers)
    async with aclosing(answer.parts) as parts:
        first = await anext(
            parts
        )  # an error before the first piece is still answered with a problem document
        await response.prepare(request)
        try:
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
