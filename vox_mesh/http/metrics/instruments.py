"""Builders of Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from vox_mesh.model.base.histogram import Histogram


def gauge(name: str, help_text: str, value: float | None) -> Metric:
    """Return a gauge; without a value it has no sample."""
    family = GaugeMetricFamily(name, help_text)
    if value is not None:
        family.add_metric((), value)
    return family


def counter(name: str, help_text: str, value: float) -> Metric:
    """Return a counter since the process started."""
    return CounterMetricFamily(name, help_text, value)


def counters(name: str, help_text: str, label: str, values: Mapping[str, float]) -> Metric:
    """Return a counter for each value of a label."""
    family = CounterMetricFamily(name, help_text, labels=(label,))
    for each, value in values.items():
        family.add_metric((each,), value)
    return family


def gauges(name: str, help_text: str, label: str, values: Mapping[str, float]) -> Metric:
    """Return a gauge for each value of a label."""
    family = GaugeMetricFamily(name, help_text, labels=(label,))
    for each, value in values.items():
        family.add_metric((each,), value)
    return family


def states(name: str, help_text: str, states: Iterable[str], current: str) -> Metric:
    """Return a gauge for each state, which is 1 for the current one."""
    family = GaugeMetricFamily(name, help_text, labels=("state",))
    for state in states:
        family.add_metric((as_label(state),), state == current)
    return family


def as_label(words: str) -> str:
    """Return a text as a label value."""
    return words.replace(" ", "_").replace("-", "_")


def histogram(name: str, help_text: str, values: Histogram) -> Metric:
    """Return a histogram."""
    buckets: list[Any] = [("+Inf" if bound == inf else str(bound), count) for bound, count in values.buckets]
    return HistogramMetricFamily(name, help_text, buckets=buckets, sum_value=values.sum)
