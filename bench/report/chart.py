"""Charts as SVG, by hand: bars and curves on logarithmic axes, readable on light and on dark paper."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import cycle
from typing import Final, NamedTuple

_WIDTH: Final = 920
_LABELS: Final = 250
_TEXTS: Final = 190
_ROW: Final = 22
_BAR: Final = 12
_HEAD: Final = 46
_FOOT: Final = 34
_PLOT: Final = 320
_MARGIN: Final = 60
_STYLE: Final = """\
<style>
  text { font: 12px sans-serif; fill: #24292f }
  .title { font-size: 14px; font-weight: bold }
  .faint { fill: #57606a }
  .paper { fill: #ffffff }
  .grid { stroke: #d0d7de }
  .mark { stroke: #24292f; stroke-width: 2 }
  .spread { stroke: #24292f; opacity: 0.6 }
  .good { fill: #0969da } .bad { fill: #bc4c00 } .plain { fill: #8250df }
  .curve { fill: none; stroke-width: 2 }
  .c0 { stroke: #0969da } .c1 { stroke: #bc4c00 } .c2 { stroke: #8250df } .c3 { stroke: #1a7f37 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .faint { fill: #9198a1 }
    .paper { fill: #0d1117 }
    .grid { stroke: #3d444d }
    .mark, .spread { stroke: #e6edf3 }
    .good { fill: #4493f8 } .bad { fill: #f0883e } .plain { fill: #ab7df8 }
    .c0 { stroke: #4493f8 } .c1 { stroke: #f0883e } .c2 { stroke: #ab7df8 } .c3 { stroke: #3fb950 }
  }
</style>
"""
_COLOURS: Final = ("c0", "c1", "c2", "c3")
_DASHES: Final = ("", "6 3", "2 3", "8 3 2 3")
"""Curves differ in more than their colour."""


class Bar(NamedTuple):
    """A ratio, its spread over rounds, and the text next to it; `is_good` is its colour."""

    label: str
    value: float
    low: float
    high: float
    text: str
    is_good: bool | None = None


class Spot(NamedTuple):
    """A point of a curve, and how far its rounds lie apart."""

    x: float
    y: float
    low: float
    high: float


class _Scale:
    """From a value to its place, on a logarithmic axis."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self._low, self._high = math.log10(low), math.log10(high)
        self._begin, self._end = begin, end

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self._begin + share * (self._end - self._begin)

    def ticks(self) -> Iterator[float]:
        """Round numbers between both ends: powers of ten, and 2 and 5 between them where there is room."""
        steps = (1, 2, 5) if self._high - self._low < 3 else (1,)
        for power in range(math.floor(self._low), math.ceil(self._high) + 1):
            for step in steps:
                if self._low - 1e-9 <= math.log10(step) + power <= self._high + 1e-9:
                    yield step * 10.0**power


def bars(title: str, axis: str, drawn: Sequence[Bar]) -> str:
    """Draw a bar for each ratio, from 1 to the right or to the left; the axis has a label below."""
    low, high = _bounds([0.5, 2.0, *(value for bar in drawn for value in (bar.value, bar.low, bar.high))])
    height = _HEAD + _ROW * len(drawn) + _FOOT
    scale = _Scale(low, high, _LABELS, _WIDTH - _TEXTS)
    parts = [_head(title, height)]
    bottom = height - _FOOT
    for tick in scale.ticks():
        x = scale(tick)
        parts.append(_line("grid", x, _HEAD - 8, x, bottom))
        parts.append(_text(x, bottom + 14, f"{tick:g}", "faint", "middle"))
    for number, bar in enumerate(drawn):
        parts.append(_bar(bar, scale, _HEAD + _ROW * number))
    parts.append(_line("mark", scale(1.0), _HEAD - 8, scale(1.0), bottom))
    parts.append(_text((_LABELS + _WIDTH - _TEXTS) / 2, bottom + 30, axis, "faint", "middle"))
    return "".join(parts) + "</svg>\n"


def curves(title: str, axis: str, drawn: Mapping[str, Sequence[Spot]]) -> str:
    """A curve for each name, over sizes; both axes are logarithmic."""
    spots = [spot for each in drawn.values() for spot in each]
    low, high = _bounds([0.5, 2.0, *(value for spot in spots for value in (spot.low, spot.high))])
    height = _HEAD + _PLOT + _FOOT
    bottom, right = height - _FOOT, _WIDTH - _LABELS
    across = _Scale(min(spot.x for spot in spots), max(spot.x for spot in spots), _MARGIN, right)
    up = _Scale(low, high, bottom, _HEAD)
    parts = [_head(title, height)]
    for tick in up.ticks():
        parts.append(_line("grid", _MARGIN, up(tick), right, up(tick)))
        parts.append(_text(_MARGIN - 8, up(tick) + 4, f"{tick:g} x", "faint", "end"))
    for x in sorted({spot.x for spot in spots}):
        parts.append(_line("grid", across(x), _HEAD, across(x), bottom))
        parts.append(_text(across(x), bottom + 14, f"{x:,.0f}", "faint", "middle"))
    parts.append(_line("mark", _MARGIN, up(1.0), right, up(1.0)))
    for number, (name, each, colour, dash) in enumerate(
        zip(drawn, drawn.values(), cycle(_COLOURS), cycle(_DASHES), strict=False)
    ):
        parts.append(_curve(each, across, up, colour, dash))
        y = _HEAD + 20 * number
        parts.append(_path(f"curve {colour}", f"M{right + 16} {y}h28", dash) + _text(right + 52, y + 4, name))
    parts.append(_text((_MARGIN + right) / 2, bottom + 30, axis, "faint", "middle"))
    return "".join(parts) + "</svg>\n"


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return bounds a little wider than the values."""
    return min(values) / 1.1, max(values) * 1.1


def _bar(bar: Bar, scale: _Scale, y: float) -> str:
    kind = {True: "good", False: "bad", None: "plain"}[bar.is_good]
    begin, end = sorted((scale(1.0), scale(bar.value)))
    place = f'x="{begin:.1f}" y="{y:.1f}" width="{end - begin:.1f}" height="{_BAR}"'
    middle = y + _BAR / 2
    return (
        _text(_LABELS - 8, y + 10, bar.label, anchor="end")
        + f'<rect class="{kind}" {place}/>\n'
        + _line("spread", scale(bar.low), middle, scale(bar.high), middle)
        + _text(_WIDTH - _TEXTS + 10, y + 10, bar.text, kind if bar.is_good is False else "")
    )


def _curve(spots: Sequence[Spot], across: _Scale, up: _Scale, colour: str, dash: str) -> str:
    corners = "L".join(f"{across(spot.x):.1f} {up(spot.y):.1f}" for spot in spots)
    spreads = "".join(
        _line(f"curve {colour}", across(spot.x), up(spot.low), across(spot.x), up(spot.high))
        for spot in spots
    )
    return _path(f"curve {colour}", f"M{corners}", dash) + spreads


def _head(title: str, height: float) -> str:
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    said = escape(title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{said}">\n{_STYLE}'
        f'<rect class="paper" width="100%" height="100%"/>\n{_text(16, 22, title, "title")}'
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    of_kind = f' class="{kind}"' if kind else ""
    return f'<text{of_kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>\n'


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>\n'


def _path(kind: str, way: str, dash: str) -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<path class="{kind}" d="{way}"{dashed}/>\n'
