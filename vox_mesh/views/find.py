"""Search: things of the mesh by a part of their names, for people who know what they look for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.rows import Value
from vox_mesh.store.schema.statements import named

MAX_FOUND: Final = 20
_MAX_OF_SORT: Final = 6
_MAX_TEXT: Final = 200
_MAX_ID: Final = 1_024
"""The longest key of a lock: an id that is cut would name another thing."""

_FIND: Final = named("find")["find"]
_ID: Final = re.compile(r"[0-9a-f]{4,64}")
_ULID: Final = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{5,25}")


@dataclass(frozen=True)
class FoundView:
    """A job, an agent, a node, a kind of job, a lock, a thread or a conflict; title and detail are data."""

    sort: str
    id: str
    title: str
    detail: str


@dataclass(frozen=True)
class FindingsView:
    """What was found: first what has exactly that name, then what begins with the text."""

    items: list[FoundView]


async def find_things(mesh: MeshServices, text: str) -> FindingsView:
    """Return what a text may mean: the beginning of an id or of a thread, or a part of another name."""
    text = text.strip()
    small, large = text.lower(), text.upper()
    if not text:
        return FindingsView([])
    job_id = small if _ID.fullmatch(small) else None
    ulid = large if _ULID.fullmatch(large) else None
    values = (*mesh.store.mesh_id, small, _MAX_OF_SORT, job_id, ulid, text)
    rows = await mesh.store.read(_FIND, values)
    found = dict.fromkeys(_found(*row) for row in rows)
    return FindingsView(sorted(found, key=lambda each: _distance(each, small))[:MAX_FOUND])


def _distance(found: FoundView, text: str) -> int:
    """Return how far a name is from a text: the same, beginning with it, or having it."""
    names = (found.id.lower(), found.title.lower())
    return 0 if text in names else 1 if any(name.startswith(text) for name in names) else 2


def _found(sort: Value, thing_id: Value, title: Value, detail: Value) -> FoundView:
    return FoundView(_plain(sort), _plain(thing_id, _MAX_ID), _plain(title), _plain(detail))


def _plain(value: Value, length: int = _MAX_TEXT) -> str:
    """Return a column as a short text; only a hostile row holds bytes."""
    text = value.hex() if isinstance(value, bytes) else "" if value is None else str(value)
    return text[:length]
