"""Addresses of resources: `vox://inbox/{agent}`, `vox://job/{id}`, `vox://locks`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import quote, unquote

from vox_mesh.errors import BadValue

SCHEME: Final = "vox://"
MAX_URI: Final = 512
LOCKS: Final = f"{SCHEME}locks"


class ResourceKind(StrEnum):
    """A sort of resource."""

    INBOX = "inbox"
    JOB = "job"
    LOCKS = "locks"


@dataclass(frozen=True)
class ResourceAddress:
    """A resource: its kind, and the agent or the job, if it is of one."""

    kind: ResourceKind
    name: str = ""

    @classmethod
    def of(cls, uri: str) -> ResourceAddress:
        """Return the address in a URI. Raises `BadValue` if it is not one."""
        if uri == LOCKS:
            return cls(ResourceKind.LOCKS)
        kind, separator, name = uri.removeprefix(SCHEME).partition("/")
        is_known = uri.startswith(SCHEME) and kind in (ResourceKind.INBOX, ResourceKind.JOB)
        if len(uri) > MAX_URI or not is_known or not separator or not name or "/" in name:
            raise BadValue(
                f"resource must be {SCHEME}inbox/AGENT, {SCHEME}job/ID or {LOCKS}, got {uri[:80]!r}",
                hint="list the resources and their templates",
            )
        return cls(ResourceKind(kind), unquote(name))

    @property
    def uri(self) -> str:
        """The URI of this resource."""
        return f"{SCHEME}{self.kind}/{quote(self.name, safe='')}" if self.name else f"{SCHEME}{self.kind}"
