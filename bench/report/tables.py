"""The tables of the page, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from bench.figures import Figure, LeftOut, Of
from bench.report.records import Record
from bench.report.report import amount, reach, spread, times

_FIGURES: Final = ("figure", "what", "ours", "raw", "ratio", "lowest..highest", "target", "reached")
_ASPECTS: Final = ("enqueued", "done-1", "done-4")
_PEERS: Final = (
    "peer",
    "enqueued",
    "done by 1 worker",
    "done by 4 workers",
    "kept when a call returns",
    "a job whose worker is killed",
)


def of_figures(records: Sequence[Record]) -> str:
    """A row for each figure, and what else was noted below."""
    rows = [_row(record.found) for record in records]
    noted = [
        f"- `{each.found.name}`: " + ", ".join(f"{name} {amount(n)}" for name, n in each.found.notes.items())
        for each in records
        if isinstance(each.found, Figure) and each.found.notes
    ]
    return "\n\n".join([_table(_FIGURES, rows), *(["\n".join(noted)] if noted else [])])


def _row(found: Figure | LeftOut) -> Sequence[str]:
    if isinstance(found, LeftOut):
        return (f"`{found.name}`", f"{found.what}: not measured, {found.why}", *[""] * (len(_FIGURES) - 2))
    return (
        f"`{found.name}`",
        found.what,
        amount(found.our_value, found.unit),
        "" if found.raw_value is None else amount(found.raw_value, found.unit),
        "" if found.ratio is None else times(found.ratio),
        spread(found),
        "" if found.target is None else reach(found.target, found.unit),
        {True: "yes", False: "**no**", None: ""}[found.is_reached],
    )


def of_peers(records: Sequence[Record]) -> str:
    """A row for each peer: ours / theirs, the ratio of both, and how far its rounds lie apart."""
    rows: list[Sequence[str]] = []
    for _, each in groupby(records, key=lambda record: record.line):
        of_peer = [record.found for record in each]
        figures = {one.name: one for one in of_peer if isinstance(one, Figure)}
        rows += [_peer(figures)] if figures else [_absent(one) for one in of_peer if isinstance(one, LeftOut)]
    return _table(_PEERS, rows)


def _peer(figures: dict[str, Figure]) -> Sequence[str]:
    first = next(iter(figures.values()))
    line = first.name.removesuffix(f"-{_ASPECTS[0]}")
    title = f"{first.what.rpartition(' / ')[2]}, {first.remarks['version']}"
    cells = [_compared(figures.get(f"{line}-{aspect}")) for aspect in _ASPECTS]
    return (title, *cells, first.remarks["keeps"], first.remarks["killed"])


def _compared(figure: Figure | None) -> str:
    if figure is None or figure.raw_value is None or figure.ratio is None:
        return "it has no such thing"
    both = f"{amount(figure.our_value)} / {amount(figure.raw_value, figure.unit)}"
    return f"{both}, **{times(figure.ratio)}** ({spread(figure)})"


def _absent(left: LeftOut) -> Sequence[str]:
    return (left.what, f"not measured: {left.why}", *[""] * (len(_PEERS) - 2))


def of_growth(records: Sequence[Record]) -> str:
    """A row for each thing, a column for each size: the time at the smallest, and the ratios to it."""
    points = [
        (each.found, each.found.point)
        for each in records
        if isinstance(each.found, Figure) and each.found.point is not None
    ]
    notes = [
        f"Not measured: {each.found.what}; {each.found.why}."
        for each in records
        if isinstance(each.found, LeftOut)
    ]
    if not points:
        return "\n".join(notes)
    rows: list[Sequence[str]] = []
    for _, curve in groupby(points, key=lambda each: each[1].curve):
        figures = [figure for figure, _ in curve]
        rows.append((figures[0].what.partition(", p50")[0], *map(_grown, figures)))
    sizes = sorted({point.size for _, point in points})
    head = (points[0][1].of, *(f"{size:,}" for size in sizes))
    return "\n\n".join([_table(head, rows), *(["\n".join(notes)] if notes else [])])


def _grown(figure: Figure) -> str:
    assert figure.ratio is not None, "a point stands next to the smallest of its curve"
    if figure.ours == figure.raw:
        return amount(figure.our_value, figure.unit)
    return f"{times(figure.ratio)} ({spread(figure)})"


def missed(records: Sequence[Record]) -> str:
    """What was not reached, plainly."""
    notes = [
        f"- `{figure.name}`: {judged_value(figure)}, not {reach(figure.target, figure.unit)}: {figure.what}"
        for figure in (record.found for record in records)
        if isinstance(figure, Figure) and figure.target is not None and not figure.is_reached
    ]
    return "\n".join(notes) or "Nothing was."


def judged_value(figure: Figure) -> str:
    """The value that stands against the target."""
    assert figure.target is not None
    if figure.target.of is Of.RATIO and figure.ratio is not None:
        return times(figure.ratio)
    return amount(figure.our_value, figure.unit)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(head)
    return "\n".join(f"| {' | '.join(row)} |".replace("  ", " ") for row in [head, rule, *rows])
