"""The health of one node, as it knows it itself: read from local state only, so that it always answers."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final, Protocol

from vox_mesh.jobs.worker.worker import Worker
from vox_mesh.model.base.histogram import Histogram
from vox_mesh.model.nodes.liveness import HealthCheck, ServiceFigures
from vox_mesh.runtime.health import Health
from vox_mesh.runtime.services import MeshServices
from vox_mesh.store.replica.replica import ReplicaStatus
from vox_mesh.store.spool.spool import SpoolStatus

_HINTS: Final = {
    "database": "check that the database's server runs and is reachable: `vox-mesh doctor`",
    "writes": "check the load of the database and its disk: `vox-mesh db status`",
    "clock": "set the clock of the machine that is off, and keep it set by NTP",
    "parts": "see the log of this node; restart it if the part can't go on",
    "background": "see the log of this node",
    "rollback": "see docs/guides/operations.md on what a rollback loses",
    "tempo": "set a policy: `vox-mesh rhythm policy set FILE`",
    "replica": "check the connection to the server: `vox-mesh db status`",
    "worker": "see the log of this node; restart its worker",
    "start": "wait until the node takes jobs",
    "leaving": "wait until the node has left, or ask another one",
    "breaker": "check that the database's server runs; the breaker closes when it answers again",
    "spool": "check the connection to the server: the writes are replayed when it is back",
}
"""What to do about a check that fails."""

_MEANINGS: Final = {
    "database": "answers in time",
    "writes": "are confirmed in time",
    "clock": "agrees with the other nodes",
    "parts": "of this node all run",
    "background": "tasks do not fail",
    "rollback": "of the database not seen",
    "tempo": "is in force",
    "replica": "follows the database",
    "worker": "takes jobs",
    "start": "is complete",
    "leaving": "has not begun",
    "breaker": "is closed",
    "spool": "is empty",
}
"""What it says of a part that its check holds."""

_STATM: Final = Path("/proc/self/statm")
_OPEN: Final = ("open", "half-open")


class HealthyNode(Protocol):
    """A mesh that runs as a node."""

    health: Health
    worker: Worker


@dataclass(frozen=True, slots=True)
class CheckView:
    """One condition for a node to be healthy.

    `hint`: what to do if it fails; `meaning`: what it says if it holds.
    """

    name: str
    ok: bool
    detail: str
    hint: str
    meaning: str


@dataclass(frozen=True, slots=True)
class BucketView:
    """How many values were at most `le`, in seconds; null: all."""

    le: float | None
    count: int


@dataclass(frozen=True, slots=True)
class HistogramView:
    """Durations since the node started, in seconds."""

    name: str
    what: str
    count: int
    sum: float
    buckets: list[BucketView]

    @classmethod
    def of(cls, name: str, what: str, values: Histogram) -> HistogramView:
        """Return the view of a histogram."""
        buckets = [BucketView(None if bound == inf else bound, count) for bound, count in values.buckets]
        return cls(name, what, values.count, round(values.sum, 6), buckets)


@dataclass(frozen=True, slots=True)
class WritesView:
    """Writes of this node since it started. `rate`: in the last seconds, per second."""

    answered: int
    failures: int
    waiting: int
    rate: float


@dataclass(frozen=True, slots=True)
class ProcessView:
    """The process of the node: processor time since its start, and resident memory."""

    cpu_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class HealthView:
    """The health of the node that answers. `streams`: open streams of events."""

    node_id: str
    now_ms: int
    ready: bool
    checks: list[CheckView]
    breaker: str
    replica_lag_ms: int | None
    replica: ReplicaStatus | None
    spool: SpoolStatus | None
    writes: WritesView
    latencies: list[HistogramView]
    process: ProcessView
    streams: int


async def health_of(mesh: MeshServices, node: HealthyNode) -> HealthView:
    """Return the health of this process's node."""
    store, replica, spool = mesh.store, mesh.store.replica_status, await mesh.store.spooled()
    own = node.health.checks()
    figures = node.health.service()
    return HealthView(
        node_id=mesh.identity.node_id,
        now_ms=mesh.clock.now_ms,
        ready=all(check.is_ok for check in own),
        checks=[_check(each) for each in (*own, *_of_store(store.circuit, spool))],
        breaker=store.circuit,
        replica_lag_ms=None if replica is None else replica.lag_ms,
        replica=replica,
        spool=spool,
        writes=WritesView(
            store.stats.answered, store.stats.failures, store.scripts_waiting, node.health.write_rate
        ),
        latencies=_latencies(mesh, node.worker, figures),
        process=_process(),
        streams=0 if figures is None else figures.streams,
    )


def _check(check: HealthCheck) -> CheckView:
    hint, meaning = _HINTS.get(check.name, ""), _MEANINGS.get(check.name, "")
    return CheckView(check.name, check.is_ok, check.detail, "" if check.is_ok else hint, meaning)


def _of_store(circuit: str, spool: SpoolStatus | None) -> Iterable[HealthCheck]:
    """Yield the checks of the store that do not make a node unready."""
    is_open = circuit in _OPEN
    yield HealthCheck("breaker", not is_open, f"the circuit breaker is {circuit}" if is_open else "")
    if spool is not None:
        refused = f", and {spool.refused} were refused" if spool.refused else ""
        detail = f"{spool.depth} writes wait to be replayed{refused}" if spool.depth or refused else ""
        yield HealthCheck("spool", not detail, detail)


def _latencies(mesh: MeshServices, worker: Worker, figures: ServiceFigures | None) -> list[HistogramView]:
    found: Sequence[tuple[str, str, Histogram | None]] = (
        ("request", "Answering a request over HTTP", None if figures is None else figures.seconds),
        ("lock", "Acquiring a lock", mesh.locks.waited),
        ("message", "From sending a message to its delivery", mesh.messages.stats.delivery),
        ("job_start", "From a job that is ready to its start", worker.stats.queued),
        ("job_run", "Attempts at jobs", worker.stats.ran),
    )
    return [HistogramView.of(name, what, values) for name, what, values in found if values is not None]


def _process() -> ProcessView:
    used = resource.getrusage(resource.RUSAGE_SELF)
    try:
        memory = int(_STATM.read_bytes().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):  # there is no /proc: the most that it ever had
        memory = used.ru_maxrss * (1 if sys.platform == "darwin" else 1_024)
    return ProcessView(round(used.ru_utime + used.ru_stime, 3), memory)
