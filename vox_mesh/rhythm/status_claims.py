"""Status claims: collects the claims of local agents and writes the last one of each beat."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import orjson

from vox_mesh.errors import (
    BadValue,
    MeshError,
    StaleIncarnation,
    StoreClosed,
)
from vox_mesh.model.base.durations import Duration, seconds_or_none
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.model.base.recent import Recent
from vox_mesh.model.rhythm.claim_signatures import claim_hash, signed_claims
from vox_mesh.model.rhythm.claims import PHASE_OF, ClaimState, StatusClaim, checked_score
from vox_mesh.model.rhythm.tempo import Beat
from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Item, Script, Shape

_log = logging.getLogger(__name__)

MAX_LIVE: Final = 4_000
"""The number of unfinished tasks whose claims are repeated; beyond it the oldest are dropped."""

MAX_WAITING: Final = 20_000
"""How many claims are kept while the database is away: this many in the spool, and as many in memory."""

_MAX_SCRIPT_BYTES: Final = 1_500_000
"""The size limit of one script, including the agents' notes."""

_BATCHES_IN_MS: Final = 1_024
_CLOSE_TIMEOUT_S: Final = 2.0
_MIN_FLUSH_S: Final = 1.0
_PUT: Final = Shape(
    "rhythm.claims",
    (named("rhythm_status")["put"], named("rhythm_status")["sign"]),
    subject=lambda item: item["node_id"],  # serials are assigned one script at a time
    repeatable=True,  # a claim is not newer than itself, so repeating has no effect
)

_TaskKey = tuple[str, str]


@dataclass(slots=True)
class _PendingClaim:
    """The last claim of a beat, to be written."""

    claim: StatusClaim
    beat: Beat
    overran: bool
    began_ms: int
    useful_ms: int | None
    hlc: str
    since_ms: int
    phase: str | None
    score: str | None

    def repeat(self, beat: Beat, hlc: str) -> _PendingClaim:
        """Return the claim repeated in another beat."""
        times = self.began_ms, self.useful_ms, hlc, self.since_ms
        return _PendingClaim(self.claim, beat, False, *times, self.phase, self.score)

    def values(self) -> tuple[Any, ...]:
        """Return the values in the order of the statement."""
        claim, beat = self.claim, self.beat
        return (
            beat.window_ms,
            claim.agent_id,
            claim.task_id,
            beat.epoch_ms,
            beat.index,
            claim.state,
            orjson.dumps(claim.wait_for).decode(),
            claim.beats_left,
            claim.progress,
            claim.notes,
            int(self.overran),
            self.began_ms,
            self.useful_ms,
            self.hlc,
            self.since_ms,
            self.phase,
            self.score,
        )

    def hash(self) -> str:
        """Return the hash of what is claimed."""
        claim, beat = self.claim, self.beat
        waits = orjson.dumps(claim.wait_for).decode()
        said = (claim.state, waits, claim.beats_left, claim.progress, claim.notes, self.hlc)
        began = (self.since_ms, self.phase, self.score)
        return claim_hash(claim.agent_id, claim.task_id, beat.epoch_ms, beat.index, *said, *began)


_Batch = dict[tuple[str, str, int], tuple[_PendingClaim, bytes]]


class StatusClaimWriter:
    """Collects the status claims of a node's agents and writes them at the end of each beat.

    The claim of an unfinished task is repeated in each beat.
    """

    def __init__(self, context: RhythmContext) -> None:
        self._context = context
        self._live: dict[_TaskKey, _PendingClaim] = {}
        self._accepted = Recent[_TaskKey, _PendingClaim](MAX_LIVE)
        """The last accepted claims of unfinished tasks: a state that is claimed again began earlier."""
        self._pending: dict[tuple[str, str, int], _PendingClaim] = {}
        self._sources: list[Callable[[], None]] = []
        self._has_claims = asyncio.Event()
        self._write_lock = asyncio.Lock()
        self._is_offline = False
        self._spooled = 0  # since the database was last reachable
        self.dropped = 0
        """Claims dropped because there were too many."""
        self.written = 0
        """Claims written or spooled: one for each task and beat."""

    @property
    def live(self) -> int:
        """The number of unfinished tasks whose claims are repeated."""
        return len(self._live)

    @property
    def waiting(self) -> int:
        """The number of claims neither written nor spooled."""
        return len(self._pending)

    # --- claims ----------------------------------------------------------------------------------

    def claim(
        self,
        agent: str,
        task: str,
        state: ClaimState | str,
        *,
        wait_for: Iterable[str] = (),
        beats_left: int | None = None,
        progress: float | None = None,
        notes: str = "",
        overran: bool = False,
        score: str | None = None,
        at_ms: int | None = None,
    ) -> StatusClaim:
        """Claim the state of a task, now or at a time that has passed.

        The last claim of a beat is written when the beat ends. A claim that is late counts in the beat of the
        last one, if that is later. `score` names the score of the task, by which its status can be found.
        """
        known = self._live.get((agent, task))
        now_ms = self._context.times.now_ms if at_ms is None else at_ms
        beat, hlc = self._beat_of(now_ms, known), self._context.tick()
        if isinstance(wait_for, str):
            raise BadValue(f"wait_for must be a list of texts, got {wait_for!r}")
        values = (agent, task, beat.index, state, tuple(wait_for), beats_left, progress, notes, hlc)
        checked_score(score)
        claim = StatusClaim(*values)  # type: ignore[arg-type]  # which makes a state of the text, or refuses it
        self._live.pop((agent, task), None)
        pending = self._add(claim, beat, overran, now_ms, known, score)
        if not claim.is_over:
            self._live[agent, task] = pending
            if len(self._live) > MAX_LIVE:
                self._live.pop(next(iter(self._live)))
                self._drop(1, "unfinished tasks")
        self._has_claims.set()
        return claim

    def add_source(self, make_claims: Callable[[], None]) -> None:
        """Have this called at the end of each beat in which claims were expected, before they are written."""
        self._sources.append(make_claims)

    def expect(self) -> None:
        """Have the sources asked at the end of this beat."""
        self._has_claims.set()

    def _beat_of(self, at_ms: int, known: _PendingClaim | None) -> Beat:
        """Return the beat at a time, but none before the last claim of the task."""
        beat = self._context.beat(at_ms)
        return beat if known is None or known.beat.epoch_ms <= beat.epoch_ms else known.beat

    def accept(self, claim: StatusClaim, *, score: str | None = None) -> None:
        """Accept a claim made on another node, at its own time. It is not repeated here."""
        checked_score(score)
        if not self._context.clock.receive(claim.hlc):
            raise BadValue(f"status claim refused: its time {claim.hlc} is ahead of the database's")
        at_ms = Hlc.parse(claim.hlc).wall_ms
        task = claim.agent_id, claim.task_id
        before = self._accepted.pop(task, None)
        pending = self._add(claim, self._context.beat(at_ms), False, at_ms, before, score)
        if not claim.is_over:
            self._accepted[task] = pending if before is None or before.hlc < claim.hlc else before
        self._has_claims.set()

    def _add(
        self,
        claim: StatusClaim,
        beat: Beat,
        overran: bool,
        now_ms: int,
        last: _PendingClaim | None,
        score: str | None,
    ) -> _PendingClaim:
        """Add a claim to the pending ones; `last` is the task's claim before, if known."""
        key = (claim.agent_id, claim.task_id, beat.epoch_ms)
        before = self._pending.get(key)
        began_ms = now_ms if last is None else last.began_ms
        useful_ms = None if last is None else last.useful_ms
        if useful_ms is None and claim.shows_use:
            useful_ms = now_ms
        if before is not None:
            if before.hlc > claim.hlc:
                return before
            overran = overran or before.overran
        phase = PHASE_OF.get(claim.state)
        since_ms = now_ms
        if last is not None:
            score = last.score if score is None else score
            phase = phase or last.phase
            if (claim.state, claim.wait_for) == (last.claim.state, last.claim.wait_for):
                since_ms = min(now_ms, last.since_ms)
        pending = _PendingClaim(claim, beat, overran, began_ms, useful_ms, claim.hlc, since_ms, phase, score)
        self._pending[key] = pending
        return pending

    def _drop(self, count: int, why: str) -> None:
        if not self.dropped:
            _log.warning("status claims dropped: too many %s", why)
        self.dropped += count

    # --- writing ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write the claims at the end of each beat; sleep while there are none."""
        while True:
            await self._has_claims.wait()
            beat = self._context.beat()
            await self._context.times.until(beat.ends_ms)
            await self.run_once(beat)

    async def run_once(self, beat: Beat) -> None:
        """Repeat the claims of unfinished tasks for a beat that has ended, and write all claims."""
        for make_claims in self._sources:
            make_claims()
        self._repeat_live(beat)
        try:
            await self.flush(max(_MIN_FLUSH_S, beat.beat_ms / 1_000))  # the next beat has its own claims
        except (StaleIncarnation, StoreClosed):
            raise
        except MeshError as error:  # includes a full disk and a revoked token: both can be repaired
            if not self._is_offline:
                _log.warning("status claims waiting for the database: %s", error.line)
            self._is_offline = True
        else:
            self._is_offline = False
        if not self._live and not self._pending:
            self._has_claims.clear()

    async def catch_up(self) -> None:
        """Write the claims of ended beats, after the clock was set."""
        if self._has_claims.is_set():
            await self.run_once(self._context.beat(self._context.beat().epoch_ms - 1))

    def _repeat_live(self, beat: Beat) -> None:
        hlc = self._context.tick()
        for (agent, task), pending in self._live.items():
            if pending.beat.epoch_ms < beat.epoch_ms:
                repeat = pending.repeat(beat, hlc)
                self._live[agent, task] = repeat
                self._pending[agent, task, beat.epoch_ms] = repeat

    async def flush(self, timeout: Duration | None = None) -> None:
        """Write or spool all claims now. Claims that fail remain for the next call."""
        timeout_s = seconds_or_none("timeout", timeout)
        async with self._write_lock:
            excess = len(self._pending) - MAX_WAITING
            if excess > 0:
                for key in list(islice(self._pending, excess)):
                    del self._pending[key]
                self._drop(excess, "claims waiting for the database")
            for batch in list(self._batches()):
                outcome = await self._context.store.write(self._script(batch), timeout=timeout_s)
                self._spooled = self._spooled + len(batch) if outcome.spooled else 0
                self.written += len(batch)
                for key, (pending, _) in batch.items():
                    if self._pending.get(key) is pending:
                        del self._pending[key]

    def _batches(self) -> Iterator[_Batch]:
        batch: _Batch = {}
        size = 0
        for key, pending in self._pending.items():
            row = orjson.dumps(pending.values())
            if size + len(row) > _MAX_SCRIPT_BYTES:
                yield batch
                batch, size = {}, 0
            batch[key] = pending, row
            size += len(row)
        if batch:
            yield batch

    def _script(self, batch: _Batch) -> Script:
        claims = b"[%s]" % b",".join(row for _, row in batch.values())
        item = {"claims": claims.decode(), **self._signed("".join(each.hash() for each, _ in batch.values()))}
        return Script.of(_PUT, item, appendable=self._spooled < MAX_WAITING)

    def _signed(self, hashes: str) -> Item:
        """Return the batch of claims with these hashes, and its signature."""
        context, node_id = self._context, self._context.node_id
        batch = context.times.now_ms * _BATCHES_IN_MS + secrets.randbelow(_BATCHES_IN_MS)
        text = signed_claims(context.mesh, node_id, batch, hashes)
        signature = context.writer.identity.key.sign(text)
        return {"node_id": node_id, "batch": batch, "hashes": hashes, "signature": signature}

    async def close(self) -> None:
        """Write or spool the remaining claims, within a short timeout."""
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self.flush(_CLOSE_TIMEOUT_S / 2)
        except (MeshError, TimeoutError) as error:
            _log.warning("status claims lost: count=%d error=%s", len(self._pending), error)
