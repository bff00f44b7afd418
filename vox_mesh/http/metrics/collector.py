"""The metrics of a node in Prometheus' format: its own counters, and the results of the census."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import Final, NamedTuple, Protocol

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)

from vox_mesh.errors import StaleFence
from vox_mesh.http.metrics.instruments import as_label, counter, counters, gauge, histogram, states
from vox_mesh.http.metrics.rhythm_collector import collect_rhythm
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.jobs.worker.worker import Worker
from vox_mesh.locks.locks import Locks
from vox_mesh.messages.messages import Messages
from vox_mesh.model.base.histogram import OTHER, QUICK_S, Histogram
from vox_mesh.model.jobs.records import JobState
from vox_mesh.model.nodes.liveness import NodeState
from vox_mesh.nodes.census import Census
from vox_mesh.nodes.clock import MeshClock
from vox_mesh.nodes.identity import Identity
from vox_mesh.occ.occ import Occ
from vox_mesh.oplog.oplog import OpLog
from vox_mesh.oplog.pending_ops import Deferral
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
    locks: Locks
    oplog: OpLog
    deferral: Deferral
    occ: Occ
    messages: Messages
    jobs: Jobs
    worker: Worker

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
        yield from collect_rhythm(self._node.rhythm, self.seen.census)
        yield from self._service()

    def _itself(self) -> Iterator[Metric]:
        node = self._node
        info = {"node": node.identity.node_id, "version": version("vox-mesh"), "home": node.store.home.value}
        yield InfoMetricFamily("vox_node", "Which node this is.", info)
        ready = None if self._is_ready is None else self._is_ready()
        yield gauge("vox_ready", "Whether the node can do its work.", ready)
        parts: Mapping[str, SupervisedPart] = getattr(getattr(node, "supervisor", None), "parts", {})
        yield counters(
            "vox_part_restarts",
            "How often a part of the node failed and was begun again.",
            "part",
            {name: part.restarts for name, part in parts.items()},
        )
        yield counters(
            "vox_background_faults",
            "Unexpected exceptions of background tasks, which went on.",
            "task",
            node.store.faults.counts,
        )

    def _jobs(self) -> Iterator[Metric]:
        jobs = GaugeMetricFamily("vox_jobs", "Jobs in the mesh.", labels=("state", "kind"))
        ready = GaugeMetricFamily(
            "vox_jobs_ready", "Jobs in the mesh that could be claimed now.", labels=("kind",)
        )
        if (census := self.seen.census) is not None:
            for kind, by_state in census.jobs.items():
                for state in JobState:
                    jobs.add_metric((state.value, kind), by_state.get(state, 0))
                ready.add_metric((kind,), census.jobs_ready.get(kind, 0))
        yield jobs
        yield ready
        worker, stats = self._node.worker, self._node.worker.stats
        yield histogram(
            "vox_job_queued_to_started_seconds",
            "How long jobs that this node started could have been claimed before.",
            stats.queued,
        )
        yield histogram("vox_job_run_seconds", "How long attempts at jobs took on this node.", stats.ran)
        yield counters(
            "vox_job_attempts",
            "Attempts at jobs on this node, by how they ended.",
            "outcome",
            {
                "succeeded": stats.succeeded,
                "failed": stats.failed,
                "given_back": stats.yielded,
                "refused": stats.refused,
            },
        )
        yield gauge("vox_jobs_in_hand", "Jobs that this node works on.", worker.running_count)
        yield gauge("vox_worker_places", "Jobs that this node works on at the most.", worker.capacity)
        yield counter(
            "vox_lease_expired",
            "Jobs that this node took back because their leases had run out.",
            self._node.jobs.expired,
        )

    def _locks(self) -> Iterator[Metric]:
        node, census = self._node, self.seen.census
        yield counters(
            "vox_fence_rejected",
            "Refusals because a token was over: of a lock, or of the claim of a job or a message.",
            "what",
            {
                "lock": node.store.traffic.refusals[StaleFence.code],
                "job": node.worker.stale_claims,
                "message": node.messages.stats.stale,
            },
        )
        yield histogram(
            "vox_lock_wait_seconds", "From asking for a lock to having it, on this node.", node.locks.waited
        )
        yield gauge("vox_locks_held", "Keys that are locked in the mesh.", census and census.locks_held)
        yield gauge(
            "vox_lock_waiters", "Those who wait for a key in the mesh.", census and census.lock_waiters
        )

    def _nodes(self) -> Iterator[Metric]:
        ages = GaugeMetricFamily(
            "vox_heartbeat_age_seconds",
            "How long ago each node ticked that has not left.",
            labels=("node",),
        )
        missed = GaugeMetricFamily(
            "vox_heartbeat_missed_ticks",
            "How many ticks should have come since, and did not.",
            labels=("node",),
        )
        states = GaugeMetricFamily("vox_nodes", "Nodes by their state.", labels=("state",))
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
            "vox_clock_flagged", "Times of others that were too far ahead to be believed.", clock.flagged
        )
        yield gauge(
            "vox_database_clock_correction_seconds",
            "What the nodes add to the database's clock; 0 unless it was set while they ran.",
            clock.correction_ms / 1_000,
        )
        yield gauge(
            "vox_database_clock_unconfirmed",
            "1 while the database's clock has jumped and the nodes have not agreed on it yet.",
            float(clock.step is not None),
        )
        yield counter(
            "vox_database_clock_jumps",
            "Steps of the database's clock that this node has noticed.",
            clock.jumps,
        )

    def _messages(self) -> Iterator[Metric]:
        messages, census = self._node.messages, self.seen.census
        yield gauge(
            "vox_messages_unacked",
            "Messages in the mesh that are still to be acknowledged.",
            census and census.messages_unacked,
        )
        yield gauge(
            "vox_messages_overdue",
            "Messages in the mesh that should have been acknowledged by now.",
            census and census.messages_overdue,
        )
        yield gauge("vox_messages_dead", "Dead letters in the mesh.", census and census.messages_dead)
        yield histogram(
            "vox_message_delivery_seconds",
            "From the sending of messages to their being handed to a consumer on this node.",
            messages.stats.delivery,
        )
        yield counter(
            "vox_messages_forged",
            "Messages that were refused here since they were not from the node that they name.",
            sum(messages.verifier.forged.values()),
        )

    def _writes(self) -> Iterator[Metric]:
        store, traffic, spool = self._node.store, self._node.store.traffic, self.seen.spool
        yield gauge(
            "vox_write_buffer_depth", "Scripts that wait for a request to take them.", store.scripts_waiting
        )
        yield histogram("vox_write_batch_scripts", "Scripts that went in one request.", traffic.batches)
        yield counter("vox_writes", "Scripts that the database has answered for.", traffic.answered)
        yield counter("vox_writes_refused", "Those of them that it refused.", sum(traffic.refusals.values()))
        yield counter(
            "vox_write_failures",
            "Scripts that were not written, or not surely, for want of an answer.",
            traffic.failures,
        )
        depth, size, refused = (None,) * 3 if spool is None else (spool.depth, spool.bytes, spool.refused)
        yield gauge("vox_spooled_scripts", "Scripts that wait in the spool.", depth)
        yield gauge("vox_spooled_bytes", "What they take on disk.", size)
        yield gauge("vox_spool_refused_scripts", "Scripts from the spool that were refused.", refused)

    def _database(self) -> Iterator[Metric]:
        store = self._node.store
        yield states("vox_circuit_state", "How the circuit breaker stands.", _CIRCUITS, store.circuit)
        status = store.replica_status
        yield states(
            "vox_replica_state",
            "How the replica stands.",
            [each.value for each in ReplicaState],
            ReplicaState.OFF.value if status is None else status.state.value,
        )
        yield gauge(
            "vox_replica_lag_seconds",
            "For how long the replica has not been known to hold every commit.",
            None if status is None else _lag_s(status),
        )
        wal = store.wal_status
        yield gauge("vox_wal_bytes", "Length of the write-ahead log of the file home.", wal and wal.bytes)
        yield gauge(
            "vox_wal_held_bytes",
            "How much of it a reader kept from being checkpointed, when it was last longer than 64 MB.",
            wal and wal.held_bytes,
        )
        yield counter(
            "vox_replica_snapshots",
            "Snapshots of a compacted log that the replica has applied.",
            0 if status is None else status.snapshots,
        )
        yield counter(
            "vox_replica_start_overs",
            "Times the replica dropped its whole copy to fetch it again.",
            0 if status is None else status.start_overs,
        )
        yield counter(
            "vox_replica_fetched_bytes",
            "Bytes of the server's log that the replica has fetched.",
            0 if status is None else status.fetched_bytes,
        )
        requests = store.traffic.requests
        yield counters(
            "vox_primary_requests",
            "Requests to the server that has the data.",
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
            "How often this node found that the database had gone back to an earlier state.",
            node.rollbacks,
        )
        yield counter(
            "vox_ops_forged",
            "Ops that this node dropped: their authors have not signed them.",
            node.deferral.forged,
        )
        outcomes = dict.fromkeys(_OCC_OUTCOMES, 0)
        for (_, outcome), count in node.occ.counts.items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
        yield counters(
            "vox_occ_conflicts",
            "Optimistic writes on this node that met another's, by what became of them.",
            "outcome",
            {as_label(outcome): count for outcome, count in outcomes.items()},
        )
        yield gauge(
            "vox_conflicts_open",
            "Conflicts in the mesh that wait for somebody to decide.",
            census and census.conflicts_open,
        )

    def _service(self) -> Iterator[Metric]:
        asked = CounterMetricFamily(
            "vox_http_requests", "Requests to this node.", labels=("method", "route", "status")
        )
        for labels, count in self._http.requests.items():
            asked.add_metric(labels, count)
        yield asked
        yield histogram(
            "vox_http_request_seconds", "How long it took to answer them, streams aside.", self._http.seconds
        )


def _lag_s(status: ReplicaStatus) -> float | None:
    return None if status.lag_ms is None else status.lag_ms / 1_000
