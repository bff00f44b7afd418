"""Health: the health checks and vital signs of a node."""

from __future__ import annotations

from typing import NamedTuple


class HealthCheck(NamedTuple):
    """One condition for a node to be healthy; if it fails, `detail` says why."""

    name: str
    is_ok: bool
    detail: str = ""


class Vitals(NamedTuple):
    """The vital signs that a node reports with its heartbeats."""

    written: int = 0
    waiting: int = 0
    replica_lag_ms: int | None = None
    faults: tuple[str, ...] = ()
