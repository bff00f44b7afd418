"""What needs a person, most urgent first: conflicts, questions, approvals, failures, stuck agents."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from vox_mesh.errors import NoAnswer
from vox_mesh.model.locks.records import iso_of
from vox_mesh.model.nodes.liveness import DEAD_AFTER_TICKS
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.rows import Row
from vox_mesh.store.schema.statements import named
from vox_mesh.views.grants.pending import PendingRequests
from vox_mesh.views.live import items as make
from vox_mesh.views.live.item import AttentionItem, AttentionKind, Urgency, readable
from vox_mesh.views.live.stuck import NO_PROGRESS_MS, lock_wait, silent_job, stuck_agents

MAX_ITEMS: Final = 200
"""The maximum number of items in a list."""

MAX_COUNTED: Final = 10_000
"""The number up to which each kind is counted."""

RECENT_MS: Final = 86_400_000
"""How long failed jobs, broken promises and dead nodes need attention."""

_ATTENTION: Final = named("attention")["attention"]
_READ_TIMEOUT_S: Final = 3.0
_ORDER: Final = tuple(Urgency)
_COUNTED: Final = (
    AttentionKind.CONFLICT,
    AttentionKind.QUESTION,
    AttentionKind.APPROVAL,
    AttentionKind.DEAD_LETTER,
    AttentionKind.OVERDUE_ACK,
    AttentionKind.FAILED_JOB,
    AttentionKind.BROKEN_PROMISE,
    AttentionKind.NODE_DEAD,
)
"""The kinds in the order of the query's counts."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Everything that needs a person, most urgent first, then oldest first.

    The list has at most 200 items; the counts, by kind, are complete up to 10,000 each.
    """

    items: tuple[AttentionItem, ...]
    counts: dict[str, int]

    @property
    def mark(self) -> tuple[object, ...]:
        """Return what must differ for a change: the time that passes is none."""
        return tuple(each.mark for each in self.items), tuple(self.counts.items())


async def attention(mesh: MeshServices) -> Attention:
    """Return what needs a person now."""
    return await AttentionReader(mesh).read()


class AttentionReader:
    """Reads what needs a person again and again; verified approvals are cached."""

    def __init__(self, mesh: MeshServices) -> None:
        self._mesh = mesh
        self._requests = PendingRequests(mesh)

    async def read(self, *, fresh: bool = True) -> Attention:
        """Return what needs a person now, with a deadline of some seconds. Not `fresh`: by the replica."""
        mesh, now_ms = self._mesh, self._mesh.clock.now_ms
        times = (now_ms, iso_of(now_ms), mesh.rhythm.status_queries.since_ms)
        limits = (MAX_ITEMS, MAX_COUNTED, now_ms - RECENT_MS, now_ms - NO_PROGRESS_MS, DEAD_AFTER_TICKS)
        values = (*mesh.store.mesh_id, *times, *limits)
        rows = await mesh.store.read(_ATTENTION, values, fresh=fresh, timeout=_READ_TIMEOUT_S)
        try:
            async with asyncio.timeout(_READ_TIMEOUT_S):
                return await self._parse(rows[0], now_ms, fresh=fresh)
        except TimeoutError:
            raise NoAnswer(f"no answer came within {_READ_TIMEOUT_S:g} s") from None

    async def _parse(self, row: Row, now_ms: int, *, fresh: bool) -> Attention:
        approval_ids = list(readable(row["approvals"], lambda values: str(values[0])))
        requests = await self._requests.of(approval_ids)
        records = map(bytes.fromhex, orjson.loads(row["statuses"]))
        tasks = await self._mesh.rhythm.status_queries.parse(records, MAX_ITEMS, fresh=fresh)
        budgets = list(readable(row["budgets"], make.budget))
        stuck = stuck_agents(
            list(readable(row["waits"], lock_wait)),
            list(readable(row["silent"], silent_job)),
            tasks.items,
            now_ms,
        )
        counts = dict(zip(_COUNTED, orjson.loads(row["counts"]), strict=True))
        counts |= {AttentionKind.BUDGET: len(budgets), AttentionKind.STUCK_AGENT: len(stuck)}
        return Attention(
            _most_urgent(
                *(stuck, budgets, map(make.approval, requests)),
                readable(row["conflicts"], make.conflict),
                readable(row["questions"], make.question),
                readable(row["dead_letters"], make.dead_letter),
                readable(row["overdue"], make.overdue_ack),
                readable(row["failed"], make.failed_job),
                readable(row["promises"], make.broken_promise),
                readable(row["gone"], make.dead_node),
            ),
            {kind.value: counts[kind] for kind in AttentionKind},
        )


def _most_urgent(*found: Iterable[AttentionItem]) -> tuple[AttentionItem, ...]:
    items: Sequence[AttentionItem] = [each for several in found for each in several]
    ordered = sorted(items, key=lambda each: (_ORDER.index(each.urgency), each.since_ms, each.kind, each.id))
    return tuple(ordered[:MAX_ITEMS])
