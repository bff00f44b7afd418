"""Labels of requests in metrics and logs, of bounded cardinality: never the client's own texts."""

from __future__ import annotations

from typing import Final, NamedTuple

from aiohttp import web

from vox_mesh.model.base.histogram import OTHER

_METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


class Label(NamedTuple):
    """A method, and the declared path of a route."""

    method: str
    route: str

    @classmethod
    def of(cls, request: web.Request) -> Label:
        """Return the label of a request."""
        resource = request.match_info.route.resource
        return cls(
            request.method if request.method in _METHODS else OTHER,
            OTHER if resource is None else resource.canonical,
        )
