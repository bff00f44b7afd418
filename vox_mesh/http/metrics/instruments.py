"""What is measured, in Prometheus' terms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from vox_mesh.model.base.histogram import Histogram


def gauge(name: str, told: str, value: float | None) -> Metric:
    """One value, if there is one."""
    family = GaugeMetricFamily(name, told)
    if value is not None:
        family.add_metric((), value)
    return family


def counter(name: str, told: str, value: float) -> Metric:
    """What only ever rises, from when the process began."""
    return CounterMetricFamily(name, told, value)


def counters(name: str, told: str, label: str, values: Mapping[str, float]) -> Metric:
    """The same, for each value of a label."""
    family = CounterMetricFamily(name, told, labels=(label,))
    for each, value in values.items():
        family.add_metric((each,), value)
    return family


def states(name: str, told: str, states: Iterable[str], current: str) -> Metric:
    """One value for each state, which is 1 for the one it is in."""
    family = GaugeMetricFamily(name, told, labels=("state",))
    for state in states:
        family.add_metric((as_label(state),), state == current)
    return family


def as_label(words: str) -> str:
    """Words as the value of a label."""
    return words.replace(" ", "_").replace("-", "_")


def histogram(name: str, told: str, spread: Histogram) -> Metric:
    """How values are spread."""
    buckets: list[Any] = [("+Inf" if bound == inf else str(bound), count) for bound, count in spread.buckets]
    return HistogramMetricFamily(name, told, buckets=buckets, sum_value=spread.sum)
