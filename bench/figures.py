"""Figures: what was measured, what was to be reached, and whether it was."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from bench.measure import p99, ratios


class Of(StrEnum):
    """What a target applies to: the ratio to the raw limit, or our own figure."""

    RATIO = "ratio"
    OURS = "ours"


@dataclass(frozen=True, slots=True)
class Target:
    """The figure to reach: an upper or a lower bound."""

    of: Of
    limit: float
    is_upper: bool

    def is_reached(self, value: float) -> bool:
        """Whether the value is on the right side of the limit."""
        return value <= self.limit if self.is_upper else value >= self.limit

    def as_json(self) -> dict[str, Any]:
        """For machines: `{"of": "ratio", "at_most": 1.5}`."""
        return {"of": self.of.value, "at_most" if self.is_upper else "at_least": self.limit}

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> Target:
        """What `as_json` has made."""
        is_upper = "at_most" in document
        return cls(Of(document["of"]), document["at_most" if is_upper else "at_least"], is_upper)


def at_most(limit: float, of: Of = Of.RATIO) -> Target:
    """A target that is reached from below."""
    return Target(of, limit, is_upper=True)


def at_least(limit: float, of: Of = Of.RATIO) -> Target:
    """A target that is reached from above."""
    return Target(of, limit, is_upper=False)


class Point(NamedTuple):
    """The place of a figure on a curve: the cost of one thing at a size of another."""

    curve: str
    of: str
    size: int


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table. `ours` and `raw` hold a value for each round; without `raw` there is no ratio.

    `worst`: the figure is the worst round, not the median one. On a curve, `raw` is the value at its smallest
    size; next to a peer, it is the peer's.
    """

    name: str
    what: str
    unit: str
    ours: Sequence[float]
    raw: Sequence[float] = ()
    target: Target | None = None
    worst: bool = False
    notes: Mapping[str, float] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)
    point: Point | None = None

    @property
    def our_value(self) -> float:
        """Our figure over all rounds."""
        if not self.worst:
            return statistics.median(self.ours)
        return max(self.ours) if self.target is not None and self.target.is_upper else min(self.ours)

    @property
    def raw_value(self) -> float | None:
        """The raw figure over all rounds."""
        return statistics.median(self.raw) if self.raw else None

    @property
    def ratios(self) -> list[float]:
        """The ratio of each round."""
        return ratios(self.ours, self.raw) if self.raw else []

    @property
    def ratio(self) -> float | None:
        """The median of the rounds' ratios."""
        return statistics.median(self.ratios) if self.raw else None

    @property
    def spread(self) -> tuple[float, float]:
        """The lowest and the highest round: of the ratio, or of our figure where there is none."""
        values = self.ratios or self.ours
        return min(values), max(values)

    @property
    def is_reached(self) -> bool | None:
        """Whether the target was reached; `None` where there is none."""
        if self.target is None:
            return None
        value = self.ratio if self.target.of is Of.RATIO else self.our_value
        assert value is not None, "a target for the ratio needs a raw limit"
        return self.target.is_reached(value)

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "name": self.name,
            "what": self.what,
            "unit": self.unit,
            "ours": self.our_value,
            "raw": self.raw_value,
            "ratio": self.ratio,
            "target": None if self.target is None else self.target.as_json(),
            "reached": self.is_reached,
            "repetitions": len(self.ours),
            "spread": list(self.spread),
            "worst": self.worst,
            "rounds": {"ours": list(self.ours), "raw": list(self.raw)},
            "notes": dict(self.notes),
            "remarks": dict(self.remarks),
            "point": None if self.point is None else self.point._asdict(),
        }

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> Figure:
        """What `as_json` has made."""
        target, point = document["target"], document["point"]
        return cls(
            document["name"],
            document["what"],
            document["unit"],
            document["rounds"]["ours"],
            document["rounds"]["raw"],
            None if target is None else Target.of_json(target),
            document["worst"],
            document["notes"],
            document["remarks"],
            None if point is None else Point(**point),
        )


def delay_figures(
    name: str,
    what: str,
    rounds: Sequence[Sequence[float]],
    limit: tuple[str, Sequence[float]],
    at_most_ms: tuple[float, float],
) -> list[Figure]:
    """Return the figures `<name>-p50` and `<name>-p99` of delays in milliseconds.

    `limit` describes the raw limit and has its value for each round; `at_most_ms` are the targets.
    """
    pooled = list(itertools.chain.from_iterable(rounds))
    notes = {"p99 of all rounds together": p99(pooled), "longest": max(pooled)}
    what_p50, what_p99 = (f"{what} {part} / {limit[0]}, p50" for part in ("p50", "p99"))
    p50_target, p99_target = (at_most(each, Of.OURS) for each in at_most_ms)
    medians, tails = [statistics.median(each) for each in rounds], [p99(each) for each in rounds]
    return [
        Figure(f"{name}-p50", what_p50, "ms", medians, limit[1], target=p50_target),
        Figure(f"{name}-p99", what_p99, "ms", tails, limit[1], target=p99_target, notes=notes),
    ]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What was not measured, and why."""

    name: str
    what: str
    why: str

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {"name": self.name, "what": self.what, "left_out": self.why}

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> LeftOut:
        """What `as_json` has made."""
        return cls(document["name"], document["what"], document["left_out"])


Found = Figure | LeftOut
"""What comes of measuring a line."""
