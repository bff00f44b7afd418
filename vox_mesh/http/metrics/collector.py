"""The metrics of a node in Prometheus' format: its own counters, and the results of the census."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from itertools import product
from typing import Final, NamedTuple, Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)

from vox_mesh.errors import StaleFence
from vox_mesh.http.metrics.archive_collector import collect_archive
from vox_mesh.http.metrics.backup_collector import collect_backups
from vox_mesh.http.metrics.instruments import as_label, counter, counters, gauge, histogram, states
from vox_mesh.http.metrics.retention_collector import collect_retention
from vox_mesh.http.metrics.rhythm_collector import collect_rhythm
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.jobs.worker.worker import Worker
from vox_mesh.locks.locks import Locks
from vox_mesh.messages.messages import Messages
from vox_mesh.model.base.histogram import OTHER, QUICK_S, Histogram
from vox_mesh.model.jobs.records import JobState
from vox_mesh.model.jobs.steps.step_row import StepKind, StepState
from vox_mesh.model.nodes.liveness import NodeState
from vox_mesh.nodes.census import Census
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.identity import Identity
from vox_mesh.occ.occ import Occ
from vox_mesh.oplog.oplog import OpLog
from vox_mesh.oplog.pending_ops import PendingOps
from vox_mesh.rhythm.rhythm import Rhythm
from vox_mesh.store.replica.replica import ReplicaState, ReplicaStatus
from vox_mesh.store.spool.spool import SpoolStatus
from vox_mesh.store.store import Store

MAX_KINDS: Final = 50
MAX_NODES: Final = 200

_OCC_OUTCOMES: Final = ("skipped", "overwritten", "merged", "recorded", "retried", "given up")
_CIRCUITS: Final = ("closed", "open", "half-open", "off")
_REQUESTS: Final = ("write", "read", "ping", "hello", "frames", "snapshot", "sync")


class Measured(Protocol):
    """The parts of a node that are measured. It may also have a `supervisor` with the node's `parts`."""

    store: Store
    clock: MeshClock
    worker: Worker

    @property
    def locks(self) -> Locks:
        """The node's locks."""

    @property
    def oplog(self) -> OpLog:
        """The node's op log."""

    @property
    def pending_ops(self) -> PendingOps:
        """The ops that wait for others."""

    @property
    def occ(self) -> Occ:
        """The node's optimistic writes."""

    @property
    def messages(self) -> Messages:
        """The node's messages."""

    @property
    def jobs(self) -> Jobs:
        """The node's jobs."""

    @property
    def identity(self) -> Identity:
        """The node's identity."""

    @property
    def rhythm(self) -> Rhythm:
        """The node's rhythm."""

    @property
    def rollbacks(self) -> int:
        """How often the node detected a rollback of the database."""


class SupervisedPart(Protocol):
    """A part of the node that is restarted when it fails."""

    restarts: int


class ScrapeInputs(NamedTuple):
    """The asynchronously read values; `None` if unavailable."""

    census: Census | None
    spool: SpoolStatus | None


class HttpStats:
    """Counts requests and responses of the service."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()
        """By method, route and status."""
        self.seconds = Histogram(QUICK_S)


class MetricsCollector:
    """Collects the metrics of one node on each scrape; asynchronously read values are in `seen`."""

    def __init__(self, node: Measured, http: HttpStats, is_ready: Callable[[], bool] | None) -> None:
        self._node = node
        self._http = http
        self._is_ready = is_ready
        self.seen = ScrapeInputs(None, None)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; one without a known value has no samples."""
        yield from self._itself()
        yield from self._jobs()
        yield from self._locks()
        yield from self._nodes()
        yield from self._messages()
        yield from self._writes()
        yield from self._database()
        yield from self._log()
        yield from collect_retention(self.seen.census)
        yield from collect_archive(self.seen.census)
        yield from collect_backups(getattr(self._node, "backup_schedule", None))
        yield from collect_rhythm(self._node.rhythm, self.seen.census)
        yield from self._service()

    def _itself(self) -> Iterator[Metric]:
        node = self._node
        info = {
            "node": node.identity.node_id,
            "version": version("vox-mesh"),
            "home": node.store.backend.value,
        }
        yield InfoMetricFamily("vox_node", "Identity, version and backend of the node.", info)
        ready = None if self._is_ready is None else self._is_ready()
        yield gauge("vox_ready", "1 if the node is ready.", ready)
        parts: Mapping[str, SupervisedPart] = getattr(getattr(node, "supervisor", None), "parts", {})
        yield counters(
            "vox_part_restarts",
            "Restarts of failed parts of the node.",
            "part",
            {name: part.restarts for name, part in parts.items()},
        )
        yield counters(
            "vox_background_faults",
            "Unexpected exceptions of background tasks, which continued.",
            "task",
            node.store.faults.counts,
        )

    def _jobs(self) -> Iterator[Metric]:
        jobs = GaugeMetricFamily("vox_jobs", "Jobs in the mesh.", labels=("state", "kind"))
        ready = GaugeMetricFamily("vox_jobs_ready", "Ready jobs in the mesh.", labels=("kind",))
        suspended = GaugeMetricFamily("vox_jobs_suspended", "Suspended jobs in the mesh.", labels=("kind",))
        if (census := self.seen.census) is not None:
            for kind, by_state in census.jobs.items():
                for state in JobState:
                    jobs.add_metric((state.value, kind), by_state.get(state, 0))
                ready.add_metric((kind,), census.jobs_ready.get(kind, 0))
                suspended.add_metric((kind,), census.jobs_suspended.get(kind, 0))
        yield from (jobs, ready, suspended)
        worker, stats = self._node.worker, self._node.worker.stats
        yield histogram(
            "vox_job_queued_to_started_seconds",
            "Time that jobs started by this node were ready before.",
            stats.queued,
        )
        yield histogram("vox_job_run_seconds", "Duration of job attempts on this node.", stats.ran)
        yield counters(
            "vox_job_attempts",
            "Job attempts on this node by outcome.",
            "outcome",
            {
                "succeeded": stats.succeeded,
                "failed": stats.failed,
                "given_back": stats.yielded,
                "refused": stats.refused,
            },
        )
        steps = CounterMetricFamily(
            "vox_job_steps",
            "Durable steps that this node has stored: results, failures and waits.",
            labels=("kind", "state"),
        )
        for labels in product(StepKind, StepState):
            steps.add_metric(labels, stats.steps[labels])
        yield steps
        yield gauge("vox_jobs_in_hand", "Jobs that run on this node.", worker.running_count)
        yield gauge("vox_worker_places", "Maximum number of jobs at a time on this node.", worker.capacity)
        yield counter(
            "vox_lease_expired",
            "Jobs that this node released because their leases had expired.",
            self._node.jobs.expired,
        )

    def _locks(self) -> Iterator[Metric]:
        node, census = self._node, self.seen.census
        yield counters(
            "vox_fence_rejected",
            "Writes rejected because of a stale token of a lock, or of the claim of a job or message.",
            "what",
            {
                "lock": node.store.stats.refusals[StaleFence.code],
                "job": node.worker.stale_claims,
                "message": node.messages.stats.stale,
            },
        )
        yield histogram("vox_lock_wait_seconds", "Time to acquire a lock on this node.", node.locks.waited)
        yield gauge("vox_locks_held", "Held lock keys in the mesh.", census and census.locks_held)
        yield gauge("vox_lock_waiters", "Waiters for locks in the mesh.", census and census.lock_waiters)

    def _nodes(self) -> Iterator[Metric]:
        ages = GaugeMetricFamily(
            "vox_heartbeat_age_seconds",
            "Age of the last heartbeat of each node that has not left.",
            labels=("node",),
        )
        missed = GaugeMetricFamily(
            "vox_heartbeat_missed_ticks",
            "Missed heartbeats since the last one.",
            labels=("node",),
        )
        states = GaugeMetricFamily("vox_nodes", "Nodes by state.", labels=("state",))
        if (census := self.seen.census) is not None:
            for each in census.nodes[:MAX_NODES]:
                ages.add_metric((each.node_id,), each.silent_s)
                missed.add_metric((each.node_id,), each.missed_ticks)
            if others := census.nodes[MAX_NODES:]:
                ages.add_metric((OTHER,), max(each.silent_s for each in others))
                missed.add_metric((OTHER,), max(each.missed_ticks for each in others))
            counted = Counter(each.state for each in census.nodes)
            counted[NodeState.LEFT] = census.nodes_left
            for state in NodeState:
                states.add_metric((state.value,), counted[state])
        yield ages
        yield missed
        yield states
        clock = self._node.clock
        yield gauge(
            "vox_clock_skew_seconds",
            "This machine's clock minus the database's.",
            clock.distance_ms / 1_000 if clock.is_set else None,
        )
        yield counter(
            "vox_clock_flagged", "Timestamps of other nodes rejected as too far ahead.", clock.flagged
        )
        yield gauge(
            "vox_database_clock_correction_seconds",
            "Correction of the database's clock; 0 unless it was set while nodes ran.",
            clock.correction_ms / 1_000,
        )
        yield gauge(
            "vox_database_clock_unconfirmed",
            "1 while the database's clock has jumped and the nodes have not agreed on it yet.",
            float(clock.step is not None),
        )
        yield counter(
            "vox_database_clock_jumps",
            "Steps of the database's clock that this node detected.",
            clock.jumps,
        )

    def _messages(self) -> Iterator[Metric]:
        messages, census = self._node.messages, self.seen.census
        yield gauge(
            "vox_messages_unacked",
            "Unacknowledged messages in the mesh.",
            census and census.messages_unacked,
        )
        yield gauge(
            "vox_messages_overdue",
            "Overdue messages in the mesh.",
            census and census.messages_overdue,
        )
        yield gauge("vox_messages_dead", "Dead letters in the mesh.", census and census.messages_dead)
        yield histogram(
            "vox_message_delivery_seconds",
            "Time from sending a message to its delivery to a consumer on this node.",
            messages.stats.delivery,
        )
        yield counter(
            "vox_messages_forged",
            "Messages refused here because their signature was not that of the named node.",
            sum(messages.verifier.forged.values()),
        )

    def _writes(self) -> Iterator[Metric]:
        store, stats, spool = self._node.store, self._node.store.stats, self.seen.spool
        yield gauge("vox_write_buffer_depth", "Write requests waiting to be sent.", store.scripts_waiting)
        yield histogram("vox_write_batch_scripts", "Write requests per batch.", stats.batches)
        yield counter("vox_writes", "Write requests answered by the database.", stats.answered)
        yield counter(
            "vox_writes_refused", "Write requests refused by the database.", sum(stats.refusals.values())
        )
        yield counter(
            "vox_write_failures",
            "Write requests without an answer: failed, or outcome unknown.",
            stats.failures,
        )
        depth, size, refused = (None,) * 3 if spool is None else (spool.depth, spool.bytes, spool.refused)
        yield gauge("vox_spooled_scripts", "Write requests in the spool.", depth)
        yield gauge("vox_spooled_bytes", "Size of the spool on disk.", size)
        yield gauge("vox_spool_refused_scripts", "Write requests from the spool that were refused.", refused)

    def _database(self) -> Iterator[Metric]:
        store = self._node.store
        yield states("vox_circuit_state", "State of the circuit breaker.", _CIRCUITS, store.circuit)
        status = store.replica_status
        yield states(
            "vox_replica_state",
            "State of the replica.",
            [each.value for each in ReplicaState],
            ReplicaState.OFF.value if status is None else status.state.value,
        )
        yield gauge(
            "vox_replica_lag_seconds",
            "Time since the replica last held every commit.",
            None if status is None else _lag_s(status),
        )
        yield gauge(
            "vox_replica_follows",
            "1 if this process follows the database for its replica, 0 if another process of its home does.",
            None if status is None else status.follower_pid in (None, os.getpid()),
        )
        wal = store.wal_status
        yield gauge("vox_wal_bytes", "Size of the write-ahead log of the file backend.", wal and wal.bytes)
        yield gauge(
            "vox_wal_held_bytes",
            "Part of it that a reader kept from being checkpointed, when it last exceeded 64 MB.",
            wal and wal.held_bytes,
        )
        yield counter(
            "vox_replica_snapshots",
            "Snapshots of a compacted log applied by the replica.",
            0 if status is None else status.snapshots,
        )
        yield counter(
            "vox_replica_start_overs",
            "Times the replica discarded its copy and fetched it again.",
            0 if status is None else status.start_overs,
        )
        yield counter(
            "vox_replica_fetched_bytes",
            "Bytes of the server's log fetched by the replica.",
            0 if status is None else status.fetched_bytes,
        )
        requests = store.stats.requests
        yield counters(
            "vox_primary_requests",
            "Requests to the primary.",
            "what",
            {what: requests[what] for what in _REQUESTS},
        )

    def _log(self) -> Iterator[Metric]:
        node, census = self._node, self.seen.census
        yield counter(
            "vox_chain_verify_failures", "Chains that this node found broken.", node.oplog.found_broken
        )
        yield counter(
            "vox_store_rollbacks",
            "Rollbacks of the database that this node detected.",
            node.rollbacks,
        )
        yield counter(
            "vox_ops_forged",
            "Ops dropped by this node because of a wrong signature.",
            node.pending_ops.forged,
        )
        outcomes = dict.fromkeys(_OCC_OUTCOMES, 0)
        for (_, outcome), count in node.occ.counts.items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
        yield counters(
            "vox_occ_conflicts",
            "Conflicting optimistic writes on this node by outcome.",
            "outcome",
            {as_label(outcome): count for outcome, count in outcomes.items()},
        )
        yield gauge(
            "vox_conflicts_open",
            "Open conflicts in the mesh.",
            census and census.conflicts_open,
        )

    def _service(self) -> Iterator[Metric]:
        asked = CounterMetricFamily(
            "vox_http_requests", "HTTP requests to this node.", labels=("method", "route", "status")
        )
        for labels, count in self._http.requests.items():
            asked.add_metric(labels, count)
        yield asked
        yield histogram(
            "vox_http_request_seconds", "Duration of HTTP requests, without streams.", self._http.seconds
        )


def _lag_s(status: ReplicaStatus) -> float | None:
    return None if status.lag_ms is None else status.lag_ms / 1_000
