"""What led to an op, and whether its entry is as its author wrote it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import orjson

from vox_mesh.errors import BadValue
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.rows import Row
from vox_mesh.store.schema.statements import named

MAX_OPS: Final = 200
"""How many ops are followed."""

_HEADS_OF: Final = named("oplog")["heads_of"]


@dataclass(frozen=True)
class CauseView:
    """An op without its payload, and the ops that it names as its causes."""

    op_id: str
    kind: str
    hlc: str
    at_ms: int | None
    node_id: str
    agent: str | None
    accepted: bool
    reason: str | None
    causal_deps: list[str]


@dataclass(frozen=True)
class CausesView:
    """An op and all that it follows from, newest first; `is_cut` if there are more."""

    ops: list[CauseView]
    is_cut: bool


@dataclass(frozen=True)
class AuthenticityView:
    """Whether the author has signed an entry, and whether its verdict differs from the sealed one."""

    op_id: str
    is_authentic: bool
    has_changed_verdict: bool


async def find_causes(mesh: MeshServices, op_id: str) -> CausesView:
    """Return an op and its causes, from the nearest to the farthest, up to a limit."""
    start = await mesh.oplog.find(op_id)
    found: dict[str, tuple[int, CauseView]] = {}
    wanted, is_cut = [start.op_id], False
    while wanted:
        values = (*mesh.store.mesh_id, orjson.dumps(wanted).decode())
        for row in await mesh.store.read(_HEADS_OF, values):
            found[row["op_id"]] = row["id"], _cause(row)
        nearest = [found[each][1] for each in wanted if each in found]
        causes = dict.fromkeys(cause for view in nearest for cause in view.causal_deps if cause not in found)
        wanted = [*causes][: MAX_OPS - len(found)]
        is_cut = is_cut or len(wanted) < len(causes)
    ordered = sorted(found.values(), key=lambda each: -each[0])
    return CausesView([view for _, view in ordered], is_cut)


async def check_authenticity(mesh: MeshServices, op_id: str) -> AuthenticityView:
    """Verify one entry: the signature that covers it, and its verdict."""
    entry = await mesh.oplog.find(op_id)
    is_authentic = await mesh.oplog.is_authentic(entry)
    return AuthenticityView(entry.op_id, is_authentic, await mesh.oplog.has_changed_verdict(entry))


def _cause(row: Row) -> CauseView:
    op_id, _, kind, hlc, node_id, agent, accepted, reason, causal_deps = row
    at_ms = None
    with suppress(BadValue):
        at_ms = Hlc.parse(str(hlc)).wall_ms
    texts = [None if each is None else str(each) for each in (agent, reason)]
    return CauseView(
        *(str(op_id), str(kind), str(hlc), at_ms, str(node_id), texts[0], bool(accepted), texts[1]),
        _op_ids(causal_deps),
    )


def _op_ids(causal_deps: Any) -> list[str]:
    """Return the ids in a stored list; none if it can't be read."""
    try:
        ids = orjson.loads(causal_deps)
    except orjson.JSONDecodeError:
        return []
    return [each for each in ids if isinstance(each, str)] if isinstance(ids, list) else []
