"""Health: the checks of a node's database access, writes, clock, background parts and worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from vox_mesh.heartbeat.heartbeat import Heartbeat
from vox_mesh.jobs.worker.worker import Worker
from vox_mesh.model.locks.records import iso_of
from vox_mesh.model.nodes.liveness import HealthCheck, ServiceFigures, Vitals
from vox_mesh.model.rhythm.plan import TempoSource
from vox_mesh.nodes.clock import MAX_DISTANCE_MS, MAX_STEP_MS, MeshClock, jumped_error
from vox_mesh.nodes.host_load import HostLoad
from vox_mesh.oplog.writer import OpLogWriter
from vox_mesh.rhythm.rhythm import Rhythm
from vox_mesh.runtime.supervisor import PartState, Supervisor
from vox_mesh.settings import Settings
from vox_mesh.store.replica.replica import ReplicaState as ReplicaState
from vox_mesh.store.store import Store

if TYPE_CHECKING:
    from vox_mesh.runtime.archive.maintenance import ArchiveMaintenance

_SLACK_S: Final = 5.0
"""Added to a few ticks, for a busy machine."""

_PATIENCE_TICKS: Final = 3
_RECENT_MS: Final = 86_400_000
_DATABASE: Final = "database"
_START: Final = "start"


class Health:
    """Checks the parts of one node from local state only, so that it always answers at once."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        writer: OpLogWriter,
        clock: MeshClock,
        heartbeat: Heartbeat,
        worker: Worker,
        supervisor: Supervisor,
        rhythm: Rhythm,
        host_load: HostLoad,
        monotonic: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._store = store
        self._writer = writer
        self._clock = clock
        self._heartbeat = heartbeat
        self._worker = worker
        self._supervisor = supervisor
        self._rhythm = rhythm
        self._host_load = host_load
        self._monotonic = monotonic
        self.service: Callable[[], ServiceFigures | None] = lambda: None
        """Returns what the node's service knows of itself, if it has one."""

        self.archive: ArchiveMaintenance | None = None
        """This node's turns at archiving, if it has an archive."""

        self.write_rate = 0.0
        """The writes per second between the last two heartbeats."""

        self._counted: tuple[float, int] | None = None
        self.is_to_work = False
        """Whether this node is supposed to run jobs."""

        self.is_beginning = False
        """Whether the node, or its worker, is about to start."""

        self.is_leaving = False
        """Whether the node is shutting down."""

    def checks(self) -> list[HealthCheck]:
        """Return all health checks."""
        if self.is_leaving:
            return [
                HealthCheck("leaving", False, "it takes nothing more, and gives back what it has in hand")
            ]
        checks = [self._database(), self._writes(), self._clock_check(), self._parts(), self._tempo()]
        checks += [self._background(), self._rollback()]
        if self.archive is not None:
            checks.append(HealthCheck("archive", True, self.archive.fault))  # the node itself works
        if self._store.replica_status is not None:
            checks.append(self._replica())
        if self.is_beginning:
            checks.append(HealthCheck(_START, False, "it does not take jobs yet"))
        elif self.is_to_work:
            checks.append(self._work())
        return checks

    def vitals(self) -> Vitals:
        """Return the vitals that the next heartbeat reports."""
        self._count_writes()
        replica = self._store.replica_status
        return Vitals(
            written=self._store.stats.answered,
            waiting=self._store.scripts_waiting,
            replica_lag_ms=None if replica is None else replica.lag_ms or 0,
            cpu_utilisation=self._host_load.cpu,
            gpu_utilisation=self._host_load.gpu,
            # A heartbeat that is read has reached the database, and may be read long after the start.
            faults=_describe(check for check in self.checks() if check.name not in (_DATABASE, _START)),
        )

    @property
    def _patience_s(self) -> float:
        return _PATIENCE_TICKS * self._settings.tick + _SLACK_S

    def _database(self) -> HealthCheck:
        name = _DATABASE
        if self._heartbeat.fault:
            return HealthCheck(name, False, self._heartbeat.fault)
        silent_s = self._heartbeat.silent_s
        if silent_s is None:
            return HealthCheck(name, False, "it has not answered yet")
        if silent_s > self._patience_s + self._heartbeat.spare_s:
            return HealthCheck(name, False, f"this node has not ticked for {silent_s:.0f} s")
        return HealthCheck(name, True)

    def _count_writes(self) -> None:
        now, answered = self._monotonic(), self._store.stats.answered
        if self._counted is not None and now > self._counted[0]:
            self.write_rate = round((answered - self._counted[1]) / (now - self._counted[0]), 2)
        self._counted = now, answered

    def _rollback(self) -> HealthCheck:
        """Fail while the node rejoins after a rollback; for a day afterwards, pass with a remark."""
        name, joined = "rollback", self._writer.joined
        if joined is None:
            is_rejoining = self._writer.incarnation is not None
            return HealthCheck(
                name, not is_rejoining, "the database went back: joining again" if is_rejoining else ""
            )
        is_recent = self._clock.now_ms - joined.epoch_began_ms < _RECENT_MS
        if not (joined.epoch.number and is_recent):
            return HealthCheck(name, True)
        at = iso_of(joined.epoch_began_ms)
        return HealthCheck(name, True, f"the database went back to an earlier state, found at {at}")

    def _writes(self) -> HealthCheck:
        stuck_s = self._store.under_way_s
        is_ok = stuck_s <= self._settings.db_deadline + _SLACK_S
        return HealthCheck("writes", is_ok, "" if is_ok else f"one is under way for {stuck_s:.0f} s")

    def _clock_check(self) -> HealthCheck:
        clock = self._clock
        if clock.step is not None:
            return HealthCheck("clock", False, str(jumped_error(clock.step.low_ms)))
        if clock.is_off:
            off_s, most_s = clock.distance_ms / 1_000, MAX_DISTANCE_MS // 1_000
            return HealthCheck(
                "clock",
                False,
                f"this machine's clock is {off_s:+.1f} s from the database's, and at most {most_s} s are "
                "tolerated: set the wrong one",
            )
        if abs(clock.correction_ms) < MAX_STEP_MS:
            return HealthCheck("clock", True)
        off_s = -clock.correction_ms / 1_000
        return HealthCheck(
            "clock", True, f"the database's clock is {off_s:+.1f} s off, which is corrected: set it"
        )

    def _parts(self) -> HealthCheck:
        faults = [
            f"{part.name} {'can not go on' if part.state is PartState.BROKEN else 'crashed'}: {part.fault}"
            for part in self._supervisor.parts.values()
            if part.state in (PartState.PAUSING, PartState.BROKEN)
        ]
        return HealthCheck("parts", not faults, "; ".join(faults))

    def _background(self) -> HealthCheck:
        """Name the background tasks that failed and continued; this never fails the check."""
        faults = self._store.faults
        lines = [f"{task} failed {n} times, last: {faults.latest[task]}" for task, n in faults.counts.items()]
        return HealthCheck("background", True, "; ".join(lines))

    def _tempo(self) -> HealthCheck:
        """Remark a median tempo; this never fails the check."""
        is_median = self._rhythm.pulse.source is TempoSource.MEDIAN
        return HealthCheck(
            "tempo", True, "policies differ and there is no leader: the median applies" if is_median else ""
        )

    def _replica(self) -> HealthCheck:
        status = self._store.replica_status
        assert status is not None
        if status.state is ReplicaState.IN_TOUCH:
            return HealthCheck("replica", True)
        age = "never up to date" if status.age_ms is None else f"{status.age_ms / 1_000:.1f} s behind"
        parts = filter(None, (f"it is {age} ({status.state})", status.error))
        return HealthCheck("replica", False, ": ".join(parts))

    def _work(self) -> HealthCheck:
        fault = self._worker.fault(self._patience_s)
        return HealthCheck("worker", not fault, fault)


def _describe(checks: Iterable[HealthCheck]) -> tuple[str, ...]:
    return tuple(f"{check.name}: {check.detail}" for check in checks if not check.is_ok)
