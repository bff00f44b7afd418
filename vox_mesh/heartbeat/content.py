"""What a heartbeat has to write: each page that it changes goes to the replicas of all nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from vox_mesh.model.nodes.liveness import Vitals

_REPEAT_S: Final = 3_600.0
"""How old the count of heartbeats and the vitals of a node may become while it writes nothing else."""

_LOAD_STEP: Final = 0.25
"""The least difference of a utilisation that is worth a write by a node that writes nothing else."""

_SMALL_LOAD_STEP: Final = 0.05
_SMALL_LOAD_STEP_S: Final = 300.0
"""Smaller differences wait until the last report is this old."""

_LAG_STEP_MS: Final = 10_000
"""The same of a replica's lag: while a frame is on its way, it is the seconds since the last hello."""


class HeartbeatContent(NamedTuple):
    """What a heartbeat writes besides the node's row.

    `counts` is for a node that has written since its last count: by the count, it notices that the database
    was rolled back to before its writes.
    """

    counts: bool
    reports: bool


class ContentChooser:
    """Chooses what the next heartbeat writes. Call `written` after each one."""

    def __init__(self, monotonic: Callable[[], float], answered: Callable[[], int]) -> None:
        """`answered` returns how many scripts of this process the database has answered."""
        self._monotonic = monotonic
        self._answered = answered
        self._counted_at = self._reported_at = float("-inf")
        self._own = 0
        self._others = 0  # scripts besides the heartbeats' own, before the newest heartbeat
        self._counted_others = -1
        self._vitals = Vitals()
        self._described: tuple[object, ...] = ()

    def choose(self, vitals: Vitals, *, is_confirming: bool = False) -> HeartbeatContent:
        """Choose for a heartbeat with these vitals; while a step of the clock is confirmed, it counts."""
        now = self._monotonic()
        self._others = self._answered() - self._own
        has_written = self._others != self._counted_others
        is_count_old = now - self._counted_at >= _REPEAT_S
        report_age_s = now - self._reported_at
        load_step = _SMALL_LOAD_STEP if report_age_s >= _SMALL_LOAD_STEP_S else _LOAD_STEP
        return HeartbeatContent(
            has_written or is_confirming or is_count_old,
            has_written
            or report_age_s >= _REPEAT_S
            or _is_news(self._vitals, vitals)
            or _has_load_moved(self._vitals, vitals, load_step),
        )

    def has_news(self, vitals: Vitals, described: tuple[object, ...]) -> bool:
        """Return whether the next heartbeat has something to tell that can't wait for its time.

        A load can: it moves all the time on a machine that also does other work.
        """
        is_counting = self.choose(self._vitals).counts
        return is_counting or _is_news(self._vitals, vitals) or described != self._described

    def written(
        self, content: HeartbeatContent, vitals: Vitals, scripts: int, described: tuple[object, ...] = ()
    ) -> None:
        """Note that a heartbeat was written, in one request with this many scripts in all."""
        self._own += scripts
        self._described = described
        if content.counts:
            self._counted_at = self._monotonic()
            self._counted_others = self._others
        if content.reports:
            self._reported_at, self._vitals = self._monotonic(), vitals


def _is_news(before: Vitals, now: Vitals) -> bool:
    return (before.faults, before.waiting, _lag(before.replica_lag_ms)) != (
        now.faults,
        now.waiting,
        _lag(now.replica_lag_ms),
    )


def _has_load_moved(before: Vitals, now: Vitals, step: float) -> bool:
    return _has_moved(before.cpu_utilisation, now.cpu_utilisation, step) or _has_moved(
        before.gpu_utilisation, now.gpu_utilisation, step
    )


def _lag(lag_ms: int | None) -> int | None:
    return None if lag_ms is None else lag_ms // _LAG_STEP_MS


def _has_moved(before: float | None, now: float | None, step: float) -> bool:
    if before is None or now is None:
        return before is not now
    return abs(now - before) >= step
