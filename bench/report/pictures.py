"""Which charts the page has: how far each target was reached, what peers do, and how cost grows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from bench.figures import Figure, Of
from bench.report.chart import Bar, Spot, bars, curves
from bench.report.records import Record
from bench.report.report import amount, reach
from bench.report.tables import judged_value


def of_targets(title: str, records: Sequence[Record]) -> str | None:
    """A bar for each figure that has a target: how many times it was reached. None, if none has."""
    drawn = [bar for figure in _figures(records) if (bar := _reached(figure)) is not None]
    return bars(f"{title}: how far targets were reached", "times the target", drawn) if drawn else None


def _reached(figure: Figure) -> Bar | None:
    target = figure.target
    if target is None or not target.limit:  # there is no ratio to zero
        return None
    by_ratio = target.of is Of.RATIO and figure.ratio is not None
    value = figure.ratio if by_ratio and figure.ratio is not None else figure.our_value
    rounds = figure.ratios if by_ratio else list(figure.ours)

    def share(each: float) -> float:
        more, less = (target.limit, each) if target.is_upper else (each, target.limit)
        return more / less if less > 0 else 1.0

    shares = [share(each) for each in rounds]
    text = f"{judged_value(figure)}, {reach(target, figure.unit)}"
    return Bar(figure.name, share(value), min(shares), max(shares), text, figure.is_reached)


def of_peers(records: Sequence[Record]) -> str | None:
    """A bar for each peer and aspect: our rate to theirs. None, if none was measured."""
    drawn = [
        Bar(
            figure.name.removeprefix("peer-"),
            figure.ratio,
            *figure.spread,
            f"{amount(figure.our_value)} / {amount(figure.raw_value, figure.unit)}",
        )
        for figure in _figures(records)
        if figure.ratio is not None and figure.raw_value is not None
    ]
    axis = "ours / theirs; beyond 1 ours is faster"
    return bars("Jobs: our rate to the peer's", axis, drawn) if drawn else None


def of_growth(records: Sequence[Record]) -> str | None:
    """A curve for each thing: its cost at each size, to that at the smallest. None, if none was measured."""
    points = [(figure, figure.point) for figure in _figures(records) if figure.point is not None]
    if not points:
        return None
    drawn = {
        curve.rpartition("-")[2]: [
            Spot(point.size, figure.ratio or 1.0, *figure.spread) for figure, point in each
        ]
        for curve, each in groupby(points, key=lambda one: one[1].curve)
    }
    of = points[0][1].of
    return curves(f"What one costs, to what it costs at the smallest: {of}", of, drawn)


def _figures(records: Sequence[Record]) -> list[Figure]:
    return [record.found for record in records if isinstance(record.found, Figure)]
