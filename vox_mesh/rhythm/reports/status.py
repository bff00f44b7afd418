"""Status claims: collects the claims of local agents and writes the last one of each beat."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
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
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.model.rhythm.claims import ClaimState, StatusClaim
from vox_mesh.model.rhythm.tempo import Beat
from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script, Shape

_log = logging.getLogger(__name__)

MAX_LIVE: Final = 4_000
"""The number of unfinished tasks whose claims are repeated; beyond it the oldest are dropped."""

MAX_WAITING: Final = 20_000
"""How many claims are kept while the database is away: this many in the spool, and as many in memory."""

_PART_BYTES: Final = 1_500_000
"""The size limit of one script, including the agents' notes."""

_CLOSE_S: Final = 2.0
_LEAST_S: Final = 1.0
_PUT: Final = Shape(
    "rhythm.claims",
    (named("rhythm_status")["put"],),
    subject=lambda item: item["node_id"],  # serials are assigned one script at a time
    repeatable=True,  # a claim is not newer than itself, so repeating has no effect
)

_Task = tuple[str, str]


@dataclass(slots=True)
class _Said:
    """The last claim of a beat, to be written."""

    claim: StatusClaim
    beat: Beat
    overran: bool
    began_ms: int
    useful_ms: int | None
    hlc: str

    def again(self, beat: Beat, hlc: str) -> _Said:
        """Return the claim repeated in another beat."""
        return _Said(self.claim, beat, False, self.began_ms, self.useful_ms, hlc)

    def values(self) -> tuple[Any, ...]:
        """Return the values in the order of the statement."""
        claim, beat = self.claim, self.beat
        return (
            *(beat.window_ms, claim.agent_id, claim.task_id, beat.epoch_ms, beat.index, claim.state),
            *(orjson.dumps(claim.wait_for).decode(), claim.beats_left, claim.progress, claim.notes),
            *(int(self.overran), self.began_ms, self.useful_ms, self.hlc),
        )


_Part = dict[tuple[str, str, int], tuple[_Said, bytes]]


class StatusDesk:
    """Collects the status claims of a node's agents and writes them at the end of each beat.

    The claim of an unfinished task is repeated in each beat.
    """

    def __init__(self, ground: RhythmContext) -> None:
        self._ground = ground
        self._live: dict[_Task, _Said] = {}
        self._unsaid: dict[tuple[str, str, int], _Said] = {}
        self._spoken = asyncio.Event()
        self._writing = asyncio.Lock()
        self._is_away = False
        self._spooled = 0  # since the database was last reachable
        self.dropped = 0
        """Claims dropped because there were too many."""

    @property
    def live(self) -> int:
        """The number of unfinished tasks whose claims are repeated."""
        return len(self._live)

    @property
    def waiting(self) -> int:
        """The number of claims neither written nor spooled."""
        return len(self._unsaid)

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
    ) -> StatusClaim:
        """Claim the state of a task now. The last claim of a beat is written when the beat ends."""
        ground = self._ground
        now_ms = ground.times.now_ms
        beat, hlc = ground.beat(now_ms), str(ground.clock.tick())
        if isinstance(wait_for, str):
            raise BadValue(f"{wait_for!r} is one thing to wait for, and not several", hint="put it in a list")
        what = (agent, task, beat.index, state, tuple(wait_for), beats_left, progress, notes, hlc)
        claim = StatusClaim(*what)  # type: ignore[arg-type]  # which makes a state of the text, or refuses it
        known = self._live.pop((agent, task), None)
        said = self._note(claim, beat, overran, now_ms, known)
        if not claim.is_over:
            self._live[agent, task] = said
            if len(self._live) > MAX_LIVE:
                self._live.pop(next(iter(self._live)))
                self._drop(1, "tasks go on at once")
        self._spoken.set()
        return claim

    def accept(self, claim: StatusClaim) -> None:
        """Accept a claim made on another node, at its own time. It is not repeated here."""
        if not self._ground.clock.receive(claim.hlc):
            raise BadValue(f"the claim's time {claim.hlc} is ahead of the database's")
        at_ms = Hlc.parse(claim.hlc).wall_ms
        self._note(claim, self._ground.beat(at_ms), False, at_ms, None)
        self._spoken.set()

    def _note(self, claim: StatusClaim, beat: Beat, overran: bool, now_ms: int, known: _Said | None) -> _Said:
        key = (claim.agent_id, claim.task_id, beat.epoch_ms)
        before = self._unsaid.get(key)
        began_ms = now_ms if known is None else known.began_ms
        useful_ms = None if known is None else known.useful_ms
        if useful_ms is None and claim.shows_use:
            useful_ms = now_ms
        if before is not None:
            if before.hlc > claim.hlc:
                return before
            overran = overran or before.overran
        said = self._unsaid[key] = _Said(claim, beat, overran, began_ms, useful_ms, claim.hlc)
        return said

    def _drop(self, count: int, why: str) -> None:
        if not self.dropped:
            _log.warning("status claims dropped: too many %s", why)
        self.dropped += count

    # --- writing ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write the claims at the end of each beat; sleep while there are none."""
        while True:
            await self._spoken.wait()
            beat = self._ground.beat()
            await self._ground.times.until(beat.ends_ms)
            await self.run_once(beat)

    async def run_once(self, beat: Beat) -> None:
        """Repeat the claims of unfinished tasks for a beat that has ended, and write all claims."""
        self._say_again(beat)
        try:
            await self.flush(max(_LEAST_S, beat.beat_ms / 1_000))  # the next beat has its own claims
        except (StaleIncarnation, StoreClosed):
            raise
        except MeshError as error:  # includes a full disk and a revoked token: both can be repaired
            if not self._is_away:
                _log.warning("status claims waiting for the database: %s", error.line)
            self._is_away = True
        else:
            self._is_away = False
        if not self._live and not self._unsaid:
            self._spoken.clear()

    async def catch_up(self) -> None:
        """Write the claims of ended beats, after the clock was set."""
        if self._spoken.is_set():
            await self.run_once(self._ground.beat(self._ground.beat().epoch_ms - 1))

    def _say_again(self, beat: Beat) -> None:
        hlc = str(self._ground.clock.tick())
        for (agent, task), said in self._live.items():
            if said.beat.epoch_ms < beat.epoch_ms:
                again = said.again(beat, hlc)
                self._live[agent, task] = again
                self._unsaid[agent, task, beat.epoch_ms] = again

    async def flush(self, timeout: float | None = None) -> None:
        """Write or spool all claims now. Claims that fail remain for the next call."""
        async with self._writing:
            excess = len(self._unsaid) - MAX_WAITING
            if excess > 0:
                for key in list(islice(self._unsaid, excess)):
                    del self._unsaid[key]
                self._drop(excess, "claims wait for the database")
            for part in list(self._parts()):
                outcome = await self._ground.store.write(self._script(part), timeout=timeout)
                self._spooled = self._spooled + len(part) if outcome.spooled else 0
                for key, (said, _) in part.items():
                    if self._unsaid.get(key) is said:
                        del self._unsaid[key]

    def _parts(self) -> Iterator[_Part]:
        part: _Part = {}
        size = 0
        for key, said in self._unsaid.items():
            row = orjson.dumps(said.values())
            if size + len(row) > _PART_BYTES:
                yield part
                part, size = {}, 0
            part[key] = said, row
            size += len(row)
        if part:
            yield part

    def _script(self, part: _Part) -> Script:
        claims = b"[%s]" % b",".join(row for _, row in part.values())
        item = {"node_id": self._ground.node_id, "claims": claims.decode()}
        return Script.of(_PUT, item, appendable=self._spooled < MAX_WAITING)

    async def close(self) -> None:
        """Write or spool the remaining claims, within a short timeout."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self.flush(_CLOSE_S / 2)
        except (MeshError, TimeoutError) as error:
            _log.warning("status claims lost: count=%d error=%s", len(self._unsaid), error)
