"""The status of tasks: who is in which phase and state, and who waits for whom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from vox_mesh.errors import BadValue
from vox_mesh.messages.signatures import SenderVerifier
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.model.rhythm.claim_signatures import claim_hash
from vox_mesh.model.rhythm.claims import PHASE_OF, ClaimState, StatusClaim
from vox_mesh.rhythm.claim_verifier import ClaimVerifier, SignedBatch
from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.store.rows import Value
from vox_mesh.store.schema.statements import named

MAX_LIMIT: Final = 500
"""The maximum number of tasks in an answer."""

_MAX_PAGES: Final = 20
_LAST_AGENT: Final = "\U0010ffff"
_LISTED: Final = named("task_status")["listed"]

Position = tuple[str, str]
"""An agent and a task: the list is in their order."""


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """The last status claim of a task, in this bar or the one before."""

    agent_id: str
    task_id: str
    state: ClaimState
    phase: str | None
    """The phase of its phrase; `None` if it is not known."""
    score: str
    """The address of its score file or the kind of its job, if it has any."""
    since_ms: int
    """When its state, and what it waits for, began."""
    wait_for: tuple[str, ...]
    waits_on: tuple[str, ...]
    """The agents it waits for, where `wait_for` names help threads."""
    beats_left: int | None
    progress: float | None
    notes: str
    node_id: str
    """The node that wrote the claim."""
    beat_index: int
    epoch_ms: int
    """The beginning of the beat of the claim."""
    hlc: str

    @property
    def position(self) -> Position:
        """Its position in the list."""
        return self.agent_id, self.task_id


class StatusPage(NamedTuple):
    """Some statuses, and the position after which to continue, if there may be more.

    `forged` is the number of tasks left out, because the node that their last claim names has not signed it.
    """

    items: list[TaskStatus]
    next: Position | None
    forged: int


class _Record(NamedTuple):
    """A stored status, with its batch and hash."""

    status: TaskStatus
    batch: SignedBatch | None
    hash: str


class StatusQueries:
    """Reads the status of tasks. Claims that their nodes have not signed are left out."""

    def __init__(self, context: RhythmContext, verifier: SenderVerifier) -> None:
        self._context = context
        self._verifier = ClaimVerifier(context, verifier)

    async def page(
        self,
        *,
        agent: str | None = None,
        state: ClaimState | str | None = None,
        score: str | None = None,
        after: Position | None = None,
        limit: int = MAX_LIMIT,
        fresh: bool = False,
    ) -> StatusPage:
        """Return the status of tasks by agent and task, after a position; filters select from them.

        A bounded number of tasks is looked at: the page may be short, and others may follow.
        """
        if not 1 <= limit <= MAX_LIMIT:
            raise BadValue(f"limit must be an integer from 1 to {MAX_LIMIT}, got {limit}")
        wanted = None if state is None else _checked_state(state)
        found: list[TaskStatus] = []
        forged = 0
        wants_all = wanted is None and score is None
        for _ in range(_MAX_PAGES):
            size = limit - len(found) if wants_all else MAX_LIMIT
            scanned = await self._read(agent, after, size, fresh=fresh)
            forged += scanned.forged
            for each in scanned.items:
                if wanted in (None, each.state) and score in (None, each.score):
                    found.append(each)
                    if len(found) == limit:
                        return StatusPage(found, each.position, forged)
            after = scanned.next
            if after is None:
                break
        return StatusPage(found, after, forged)

    async def _read(
        self, agent: str | None, after: Position | None, limit: int, *, fresh: bool
    ) -> StatusPage:
        start = after or (("", "") if agent is None else (agent, ""))
        values = (*self.bounds(), *start, _LAST_AGENT if agent is None else agent, limit)
        rows = await self._context.store.read(_LISTED, values, fresh=fresh)
        return await self.parse((row[0] for row in rows), limit, fresh=fresh)

    async def parse(self, records: Iterable[Any], limit: int, *, fresh: bool = False) -> StatusPage:
        """Return the last status of each task of the first records of several bars, at most `limit`."""
        last = _last_of_each(records)
        first = sorted(last)[:limit]
        claimed = [record for record in map(last.__getitem__, first) if record is not None]
        genuine = await self._verifier.are_genuine([(each.batch, each.hash) for each in claimed], fresh=fresh)
        found = [each.status for each, is_genuine in zip(claimed, genuine, strict=True) if is_genuine]
        after = first[-1] if len(first) == limit else None
        return StatusPage(found, after, len(first) - len(found))

    @property
    def since_ms(self) -> int:
        """The start of the first bar that counts: the one before this."""
        timeline = self._context.timeline
        return timeline.window_at(timeline.window_at(self._context.times.now_ms).start_ms - 1).start_ms

    def bounds(self) -> tuple[Value, ...]:
        """Return the mesh, the start of the first bar that counts, and the time, for the statement."""
        return (*self._context.mesh, self.since_ms, self._context.times.now_ms)


def _last_of_each(records: Iterable[Any]) -> dict[Position, _Record | None]:
    last: dict[Position, _Record | None] = {}
    for each in records:
        position, record = _parse(each)
        if position is not None:
            before = last.get(position)
            is_later = before is None or (
                record is not None and record.status.epoch_ms > before.status.epoch_ms
            )
            last[position] = record if is_later else before
    return last


def _checked_state(state: str) -> ClaimState:
    try:
        return ClaimState(state)
    except ValueError:
        raise BadValue(f"state must be one of {', '.join(ClaimState)}, got {state!r}") from None


def _parse(record: Any) -> tuple[Position | None, _Record | None]:
    """Return the position and the status of a record; none of a row that no node can have written."""
    try:
        values: list[Any] = orjson.loads(record)
    except orjson.JSONDecodeError:
        return None, None
    agent_id, task_id, epoch_ms, beat_index, state, waits, beats_left, progress, notes, hlc, *rest = values
    node_id, since_ms, phase, score, batch, waits_on = rest
    position = agent_id, task_id
    try:
        wait_for = orjson.loads(waits)
        values = [agent_id, task_id, beat_index, state, wait_for, beats_left, progress, notes, hlc]
        claim = StatusClaim(*values)
        claimed_ms = Hlc.parse(claim.hlc).wall_ms
        claimed = (agent_id, task_id, epoch_ms, beat_index, state, waits, beats_left, progress, notes, hlc)
        digest = claim_hash(*claimed, since_ms, phase, score)
        if type(epoch_ms) is not int:
            return position, None
    except (BadValue, ValueError, TypeError):
        return position, None
    status = TaskStatus(
        agent_id=claim.agent_id,
        task_id=claim.task_id,
        state=claim.state,
        phase=phase or PHASE_OF.get(claim.state),
        score=score or "",
        since_ms=claimed_ms if type(since_ms) is not int else since_ms,
        wait_for=claim.wait_for,
        waits_on=tuple(waits_on or ()),
        beats_left=claim.beats_left,
        progress=claim.progress,
        notes=claim.notes,
        node_id=node_id,
        beat_index=claim.beat_index,
        epoch_ms=epoch_ms,
        hlc=claim.hlc,
    )
    return position, _Record(status, SignedBatch(batch, node_id) if type(batch) is int else None, digest)
