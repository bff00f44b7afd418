"""Digests of signed requests: the body must be the one that was signed."""

from __future__ import annotations

from http import HTTPStatus

from aiohttp import web

from vox_mesh.http.problems import Problem
from vox_mesh.http.requests import read_whole
from vox_mesh.model.principals.request_signature import RequestSignature


async def check_digest(request: web.Request, signature: RequestSignature | None) -> None:
    """Read the body of a signed request, and raise 401 if it is not the one that was signed."""
    if signature is not None and not signature.is_of(await read_whole(request)):
        raise Problem(
            HTTPStatus.UNAUTHORIZED,
            "digest_wrong",
            "body is not the one that was signed",
            "sign the bytes of the body that are sent",
        )
