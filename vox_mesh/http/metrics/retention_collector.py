"""The metrics of retention: what was pruned, and whether pruning keeps up."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from vox_mesh.http.metrics.instruments import as_label, counters, gauge, gauges
from vox_mesh.model.retention.subjects import Subject
from vox_mesh.nodes.census import Census

_WHOLE = ""


def collect_retention(census: Census | None) -> Iterator[Metric]:
    """Yield the metrics; without a census they have no samples."""
    known = {} if census is None else census.pruning
    by_subject = {as_label(each): known[each] for each in Subject if each in known}
    yield counters(
        "vox_retention_pruned_rows",
        "Rows pruned in the mesh.",
        "subject",
        {subject: each.pruned for subject, each in by_subject.items()},
    )
    yield gauges(
        "vox_retention_needed_rows",
        "Rows past their policy that something still needs.",
        "subject",
        {subject: each.needed for subject, each in by_subject.items()},
    )
    whole = known.get(_WHOLE)
    yield gauge(
        "vox_retention_pass_age_seconds",
        "Time since a pass of pruning was complete.",
        whole and whole.age_s,
    )
