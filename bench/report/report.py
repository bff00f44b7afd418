"""The report: an aligned table of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.figures import Figure, Found, LeftOut, Of, Target

_HEAD: Final = ("what", "unit", "ours", "raw", "ratio", "lowest..highest", "reach", "reached")


def table(found: Sequence[Found]) -> str:
    """The figures as lines of text, one for each, under a head; then what was left out."""
    figures = [each for each in found if isinstance(each, Figure)]
    left = [f"{each.name}: left out, {each.why}" for each in found if isinstance(each, LeftOut)]
    rows = [_HEAD, *(_row(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    notes = [f"{figure.name}: {_notes(figure)}" for figure in figures if figure.notes]
    return "\n".join([*lines, *(["", *notes] if notes else []), *(["", *left] if left else [])])


def machine_line(machine: Mapping[str, Any]) -> str:
    """The machine in one line."""
    server = f", {machine['server']}" if machine["server"] else ""
    return (
        f"{machine['cores']} cores, {machine['arch']}, {machine['system']}, Python {machine['python']}, "
        f"SQLite {machine['sqlite']}{server}; load before the run {machine['load']}"
    )


def number(value: float) -> str:
    """As many digits as one can use."""
    if value >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def amount(value: float, unit: str = "") -> str:
    """A number with its unit: `9,589/s`, `604 us`."""
    if unit.startswith("1"):
        return number(value) + unit[1:]
    return f"{number(value)} {unit}".rstrip()


def times(ratio: float) -> str:
    """A ratio."""
    return f"{ratio:.2f} x"


def spread(figure: Figure) -> str:
    """The lowest and the highest round."""
    low, high = figure.spread
    if figure.ratio is not None:
        return f"{low:.2f}..{high:.2f}"
    return f"{number(low)}..{amount(high, figure.unit)}"


def reach(target: Target, unit: str) -> str:
    """What is to be reached, in words."""
    limit = f"{target.limit:g} x" if target.of is Of.RATIO else amount(target.limit, unit)
    return f"at {'most' if target.is_upper else 'least'} {limit}"


def _row(figure: Figure) -> tuple[str, ...]:
    return (
        figure.what,
        figure.unit,
        number(figure.our_value),
        "" if figure.raw_value is None else number(figure.raw_value),
        "" if figure.ratio is None else times(figure.ratio),
        spread(figure),
        "" if figure.target is None else reach(figure.target, figure.unit),
        {True: "yes", False: "NO", None: ""}[figure.is_reached],
    )


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    first, unit, *numbers, reached = row
    return [
        first.ljust(widths[0]),
        unit.ljust(widths[1]),
        *(text.rjust(width) for text, width in zip(numbers, widths[2:-1], strict=True)),
        reached,
    ]


def _notes(figure: Figure) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in figure.notes.items())
