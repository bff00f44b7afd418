"""What a heartbeat has to write: each page that it changes goes to the replicas of all nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from vox_mesh.model.nodes.liveness import Vitals

_REPEAT_S: Final = 3_600.0
"""How old the count of heartbeats and the vitals of a node may become while it writes nothing else."""

_LOAD_STEP: Final = 0.05
"""The least difference of a utilisation that is worth a write."""

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
        is_report_old = now - self._reported_at >= _REPEAT_S
        return HeartbeatContent(
            has_written or is_confirming or is_count_old,
            has_written or is_report_old or _have_changed(self._vitals, vitals),
        )

    def has_news(self, vitals: Vitals, described: tuple[object, ...]) -> bool:
        """Return whether the next heartbeat has more to tell than that this node is alive."""
        content = self.choose(vitals)
        return content.counts or content.reports or described != self._described

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


def _have_changed(before: Vitals, now: Vitals) -> bool:
    return (
        (before.faults, before.waiting, _lag(before.replica_lag_ms))
        != (now.faults, now.waiting, _lag(now.replica_lag_ms))
        or _has_moved(before.cpu_utilisation, now.cpu_utilisation)
        or _has_moved(before.gpu_utilisation, now.gpu_utilisation)
    )


def _lag(lag_ms: int | None) -> int | None:
    return None if lag_ms is None else lag_ms // _LAG_STEP_MS


def _has_moved(before: float | None, now: float | None) -> bool:
    if before is None or now is None:
        return before is not now
    return abs(now - before) >= _LOAD_STEP
