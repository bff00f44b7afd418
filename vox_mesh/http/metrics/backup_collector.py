"""The metrics of scheduled backups: how old the newest is, and whether making them fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from vox_mesh.runtime.backups.schedule import BackupSchedule

_LABELS: Final = ("scope", "repository")


def collect_backups(schedule: BackupSchedule | None) -> Iterator[Metric]:
    """Yield the metrics; they have no samples on a node without scheduled backups."""
    age = GaugeMetricFamily(
        "vox_backup_age_seconds", "Time since the newest scheduled backup.", labels=_LABELS
    )
    interval = GaugeMetricFamily(
        "vox_backup_interval_seconds", "Time between two scheduled backups.", labels=_LABELS
    )
    failures = CounterMetricFamily(
        "vox_backup_failures", "Scheduled backups that could not be made.", labels=_LABELS
    )
    if schedule is not None:
        age.add_metric(schedule.mesh_id, schedule.age_s)
        interval.add_metric(schedule.mesh_id, schedule.interval_s)
        failures.add_metric(schedule.mesh_id, schedule.failures)
    yield age
    yield interval
    yield failures
