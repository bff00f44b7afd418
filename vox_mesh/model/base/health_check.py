"""Health: what a node says of itself."""

from __future__ import annotations

from typing import NamedTuple


class HealthCheck(NamedTuple):
    """One thing that must be so for a node to be of use; if it is not, `detail` says what is wrong."""

    name: str
    is_ok: bool
    detail: str = ""


class Vitals(NamedTuple):
    """How a node is, as its ticks tell the others."""

    written: int = 0
    waiting: int = 0
    replica_lag_ms: int | None = None
    faults: tuple[str, ...] = ()
