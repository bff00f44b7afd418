"""`/livez` and `/readyz`: liveness and readiness of a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final

import orjson
from aiohttp import web

from vox_mesh.http.access import Access, Scope
from vox_mesh.model.nodes.liveness import HealthCheck

Checks = Callable[[], Sequence[HealthCheck]]

LIVE: Final = "/livez"
READY: Final = "/readyz"


class HealthPages:
    """Serves both. Without a token they answer yes or no; `/readyz?verbose` gives reasons to readers."""

    def __init__(self, checks: Checks, access: Access) -> None:
        self._checks = checks
        self._access = access

    def add_to(self, app: web.Application) -> None:
        """Register the routes."""
        app.router.add_get(LIVE, self._live)
        app.router.add_get(READY, self._ready)

    async def _live(self, _: web.Request) -> web.Response:
        return _json_response({"live": True}, HTTPStatus.OK)

    async def _ready(self, request: web.Request) -> web.Response:
        checks = self._checks()
        is_ready = all(check.is_ok for check in checks)
        document: dict[str, object] = {"ready": is_ready}
        if "verbose" in request.query:
            self._access.check(request, Scope.METRICS)
            document["checks"] = [
                {"name": check.name, "ok": check.is_ok, "detail": check.detail} for check in checks
            ]
        return _json_response(document, HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE)


def _json_response(document: dict[str, object], status: HTTPStatus) -> web.Response:
    headers = {"Cache-Control": "no-store"}
    return web.Response(
        body=orjson.dumps(document), status=status, content_type="application/json", headers=headers
    )
