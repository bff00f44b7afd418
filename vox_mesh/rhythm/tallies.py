"""Tallies in the database: what jobs without a record of their own add to the figures of their bar."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import orjson

from vox_mesh.model.rhythm.costs import Rates, Resources
from vox_mesh.model.rhythm.tallies import CountedJob, Tally
from vox_mesh.model.rhythm.tempo import Beat
from vox_mesh.rhythm.context import RhythmContext
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Statement

_SQL: Final = named("job_tallies")


class Tallies:
    """Counts ended jobs. A tally is written with the completions of its jobs, in the same script."""

    def __init__(self, context: RhythmContext, rates: Rates) -> None:
        self._context = context
        self._rates = rates

    def count(self, jobs: Iterable[CountedJob], agent: str | None = None) -> Statement:
        """Return the statement that adds jobs of an agent to the tallies of the bars in which they ended.

        By default they are of the agent of this process.
        """
        context = self._context
        tallies: dict[tuple[int, bool], Tally] = {}
        for job in jobs:
            beat = context.beat(job.ended_ms)
            key = beat.window_ms, job.is_scored
            tally = tallies.get(key)
            if tally is None:
                tally = tallies[key] = Tally()
            if beat.epoch_ms <= job.began_ms <= job.ended_ms:  # the usual case, kept fast
                tally.add(job, 1, (job.ended_ms - job.began_ms) / beat.beat_ms)
            else:
                self._add_long(tally, job, beat)
        rows = [self._values_of(*key, tally) for key, tally in tallies.items()]
        agent = agent or context.agent or context.node_id
        return Statement(_SQL["count"], (*context.mesh, agent, orjson.dumps(rows).decode()))

    def _add_long(self, tally: Tally, job: CountedJob, last: Beat) -> None:
        timeline, began_ms = self._context.timeline, min(job.began_ms, job.ended_ms)
        first_ms = timeline.beat_at(began_ms).epoch_ms
        used = 1 + round(timeline.beats_between(first_ms, last.epoch_ms))
        tally.add(job, used, timeline.beats_between(began_ms, job.ended_ms))

    def _values_of(self, window_ms: int, is_scored: bool, tally: Tally) -> tuple[Any, ...]:
        used = Resources(cpu_sec=tally.cpu_s, mem_gbs=tally.mem_gbs, disk_io_mb=tally.io_mb)
        return (
            window_ms,
            int(is_scored),
            tally.done,
            tally.failed,
            tally.done_beats,
            tally.failed_beats,
            sum(tally.bu_by_kind.values()),
            self._rates.total(tally.bu_by_kind, used),
            tally.cpu_s,
            tally.mem_gbs,
            tally.io_mb,
            {str(delay): count for delay, count in tally.delays.items()},
        )
