"""The metrics of the archive: what was archived, and whether archiving keeps up."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from vox_mesh.http.metrics.instruments import gauge
from vox_mesh.nodes.census import Census


def collect_archive(census: Census | None) -> Iterator[Metric]:
    """Yield the metrics; without a census, or in a mesh without an archive, they have no samples."""
    known = {} if census is None else census.pruning
    segments, size = known.get("archive-segments"), known.get("archive-bytes")
    last, missing = known.get("archive"), known.get("archive-missing")
    yield gauge(
        "vox_archive_segments", "Segments of the log archived by nodes.", segments and segments.pruned
    )
    yield gauge("vox_archive_bytes", "Size of these segments in the archive.", size and size.pruned)
    yield gauge("vox_archive_pass_age_seconds", "Time since archiving was complete.", last and last.age_s)
    yield gauge(
        "vox_archive_missing_segment",
        "Number of the first segment whose file the archive lacks; 0: it has all of them.",
        missing and missing.pruned,
    )
