"""What a request is called where others read of it: never in the caller's own words, which have no bound."""

from __future__ import annotations

from typing import Final, NamedTuple

from aiohttp import web

from vox_mesh.model.base.histogram import OTHER

_METHODS: Final = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


class Label(NamedTuple):
    """A method, and the path of the route as it was declared."""

    method: str
    route: str

    @classmethod
    def of(cls, request: web.Request) -> Label:
        """The label of a request."""
        resource = request.match_info.route.resource
        return cls(
            request.method if request.method in _METHODS else OTHER,
            OTHER if resource is None else resource.canonical,
        )
