"""What a node tells Prometheus, as Prometheus reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support.messages.messaging import PATIENCE_S
from tests.support.messages.relaying import TOKEN
from vox_mesh.http.access import Access
from vox_mesh.http.address import ListenAddress
from vox_mesh.http.metrics.endpoint import Metrics
from vox_mesh.http.service import Service
from vox_mesh.node import MeshNode


class Scrape:
    """One answer to a scrape."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families: list[Metric] = list(text_string_to_metric_families(text))

    def get(self, name: str, /, **labels: str) -> float | None:
        """The value with exactly these labels; `None` if there is none."""
        found = [
            sample.value
            for family in self.families
            for sample in family.samples
            if sample.name == name and sample.labels == labels
        ]
        assert len(found) <= 1, f"{name}{labels} is reported {len(found)} times"
        return found[0] if found else None

    def all(self, name: str) -> dict[tuple[str, ...], float]:
        """All values of a name, by the values of their labels in the order of their names."""
        return {
            tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value
            for family in self.families
            for sample in family.samples
            if sample.name == name
        }


async def scraped(metrics: Metrics) -> Scrape:
    """What a node tells now."""
    return Scrape((await metrics.exposition()).decode())


def metrics_of(node: MeshNode) -> Metrics:
    """The metrics of a node that is always ready."""
    return Metrics(node, Access(TOKEN), is_ready=lambda: True)


@asynccontextmanager
async def served(metrics: Metrics) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service with these metrics alone."""
    service = Service(ListenAddress("127.0.0.1", 0, None, "VOX_MESH_BIND"), [metrics.add_to])
    try:
        url = await service.start()
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, trust_env=False) as client:
            yield client
    finally:
        await service.stop()
