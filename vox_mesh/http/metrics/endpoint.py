"""`GET /metrics`: the node's metrics for Prometheus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from vox_mesh.errors import MeshError
from vox_mesh.http.access import Access, Scope
from vox_mesh.http.admission import Admission, Load
from vox_mesh.http.metrics.collector import MAX_KINDS, HttpStats, Measured, MetricsCollector, ScrapeInputs
from vox_mesh.http.metrics.rhythm_collector import MAX_SUBJECTS
from vox_mesh.http.problems import Handler
from vox_mesh.http.tracing import Label
from vox_mesh.model.base.histogram import Histogram
from vox_mesh.nodes.census import Census, take_census
from vox_mesh.store.spool.spool import SpoolStatus

PATH: Final = "/metrics"
CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

_READ_TIMEOUT_S: Final = 1.0
"""The timeout of asynchronously read values; later ones are omitted."""


class Metrics:
    """Serves the metrics of one node, and counts the requests of its service."""

    def __init__(
        self,
        node: Measured,
        access: Access,
        *,
        is_ready: Callable[[], bool] | None = None,
        admission: Admission | None = None,
    ) -> None:
        self._access = access
        self._admission = admission or Admission()
        self._store = node.store
        self._clock = node.clock
        self._http = HttpStats()
        self._collector = MetricsCollector(node, self._http, is_ready)
        self._registry = CollectorRegistry()
        self._registry.register(self._collector)
        self._scrape: asyncio.Task[bytes] | None = None
        ProcessCollector(registry=self._registry)

    @property
    def request_seconds(self) -> Histogram:
        """How long the requests of the service have taken."""
        return self._http.seconds

    def add_to(self, app: web.Application) -> None:
        """Register the route, and count all requests of the application."""
        app.router.add_get(PATH, self.answer)
        app.middlewares.insert(0, self.count_request)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a scrape."""
        credential = self._access.check(request, Scope.METRICS)
        async with self._admission.place(Load.READ, credential):
            return web.Response(body=await self.exposition(), headers={"Content-Type": CONTENT_TYPE})

    async def exposition(self) -> bytes:
        """Return all metrics now; scrapes at the same time share one.

        While the database is away, its metrics are omitted.
        """
        if self._scrape is None or self._scrape.done():
            self._scrape = asyncio.create_task(self._collect(), name="vox-mesh-scrape")
        return await asyncio.shield(self._scrape)

    async def _collect(self) -> bytes:
        seen = ScrapeInputs(*await asyncio.gather(self._take_census(), self._read_spool()))
        self._collector.seen = seen
        return generate_latest(self._registry)

    async def _take_census(self) -> Census | None:
        if self._store.is_prepared:
            with suppress(MeshError):
                return await take_census(
                    self._store, self._clock, kinds=MAX_KINDS, budgets=MAX_SUBJECTS, timeout=_READ_TIMEOUT_S
                )
        return None

    async def _read_spool(self) -> SpoolStatus | None:
        with suppress(MeshError, TimeoutError):
            async with asyncio.timeout(_READ_TIMEOUT_S):
                return await self._store.spooled()
        return None

    @web.middleware
    async def count_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Count a request and its duration. The duration of a stream is not recorded."""
        began = time.monotonic()
        try:
            response = await handler(request)
        except web.HTTPException as error:
            self._count(request, error.status)
            raise
        self._count(request, response.status)
        if isinstance(response, web.Response):
            self._http.seconds.observe(time.monotonic() - began)
        return response

    def _count(self, request: web.Request, status: int) -> None:
        self._http.requests[*Label.of(request), str(status)] += 1
