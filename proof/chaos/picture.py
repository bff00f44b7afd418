"""A picture of a run: faults over time, under the throughput."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final
from xml.sax.saxutils import escape

from proof.chaos.schedule import Schedule
from proof.history import Event, History, Step
from proof.verdicts import Verdict

_WIDTH: Final = 1_200
_LEFT: Final = 130
_RIGHT: Final = 20
_TOP: Final = 70
_CHART: Final = 160
_LANE: Final = 16
_BIN_S: Final = 0.5
_GAP: Final = 14
_LETTER_WIDTH: Final = 5
_MARKS_S: Final = (5, 20, 60, 300, 1_800)
_MOST_MARKS: Final = 20
"""Labels on the time axis."""

_COLOURS: Final = {Step.OK: "#2f9e63", Step.NO: "#e3a72f", Step.UNKNOWN: "#d1495b"}
_NAMES: Final = {Step.OK: "done", Step.NO: "refused", Step.UNKNOWN: "unknown"}
_STYLE: Final = """
text { font: 11px system-ui, sans-serif; fill: #333 } .title { font-size: 16px; font-weight: 600 }
.lane { text-anchor: end } .axis { text-anchor: middle; fill: #666 } .small { font-size: 9px; fill: #fff }
.storm { fill: #eef1f6 } .life { fill: #9db7d5 } .paused { fill: #50607a } .fault { fill: #b5546a }
.grid { stroke: #ddd } .mark { stroke: #2f9e63; stroke-dasharray: 4 3 }
.kill { stroke: #d1495b; stroke-width: 2 }
"""


class _Picture:
    """Collects the parts of the picture, and maps times to coordinates."""

    def __init__(self, history: History, schedule: Schedule) -> None:
        self._history = history
        self._schedule = schedule
        self._began = history.events[0].at
        self._ended = max(event.at for event in history.events if not event.what.startswith("final"))
        self._length = max(self._ended - self._began, 1.0)
        self._parts: list[str] = []
        self._y = float(_TOP)

    def x(self, at: float) -> float:
        """Return the x coordinate of a moment."""
        part = (min(at, self._ended) - self._began) / self._length
        return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)

    def add(self, part: str) -> None:
        """Add a part on top."""
        self._parts.append(part)

    def text(self, x: float, y: float, words: str, kind: str = "") -> None:
        """Add text."""
        self.add(f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(words)}</text>')

    def bar(self, began: float, ended: float, y: float, kind: str, tooltip: str = "") -> None:
        """Add a bar to a lane, from one moment to another, with a tooltip."""
        x = self.x(began)
        width = max(self.x(ended) - x, 1.5)
        self.add(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_LANE - 4}" rx="2" class="{kind}">'
            f"<title>{escape(tooltip)}</title></rect>"
        )

    # --- from top to bottom ----------------------------------------------------------------------

    def draw(self, verdicts: list[Verdict]) -> str:
        """Return the whole picture."""
        self._draw_title(verdicts)
        self._draw_throughput()
        self._draw_processes()
        self._draw_faults()
        self._draw_axis()
        height = self._y + 30
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height:.0f}" '
            f'viewBox="0 0 {_WIDTH} {height:.0f}"><style>{_STYLE}</style>'
            f'<rect width="{_WIDTH}" height="{height:.0f}" fill="#fff"/>'
        )
        return "\n".join((head, *self._storms(), *self._parts, *self._marks(), "</svg>\n"))

    def _draw_title(self, verdicts: list[Verdict]) -> None:
        plan = self._schedule
        broken = [verdict.name for verdict in verdicts if not verdict.holds]
        self.text(_LEFT, 24, f"Chaos on {plan.store}, seed {plan.seed}, {plan.seconds:g} s", "title")
        seen = sum(verdict.is_seen for verdict in verdicts)
        ending = f"broken: {', '.join(broken)}" if broken else f"all {seen} promises that were tried held"
        operations, faults = len(self._history.all_operations), len(plan.faults)
        self.text(_LEFT, 44, f"{operations} operations of {len(plan.nodes)} nodes, {faults} faults; {ending}")
        for number, step in enumerate(_COLOURS):
            x = _WIDTH - _RIGHT - 240 + number * 80
            self.add(f'<rect x="{x}" y="35" width="10" height="10" fill="{_COLOURS[step]}"/>')
            self.text(x + 14, 44, _NAMES[step])

    def _draw_throughput(self) -> None:
        counts = Counter(
            (int((operation.ended - self._began) / _BIN_S), operation.step)
            for operation in self._history.all_operations
            if operation.ended < float("inf")
        )
        bins = {number for number, _ in counts}
        highest = max((sum(counts[each, step] for step in _COLOURS) for each in bins), default=1)
        foot = self._y + _CHART
        for part in (0.0, 0.5, 1.0):
            y = foot - part * _CHART
            self.add(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}" class="grid"/>')
            self.text(_LEFT - 6, y + 4, f"{part * highest / _BIN_S:.0f}", "lane")
        self.text(_LEFT - 40, self._y + _CHART / 2 - 12, "operations/s", "lane")
        for each in sorted(bins):
            y = foot
            x, right = (self.x(self._began + (each + more) * _BIN_S) for more in (0, 1))
            for step, colour in _COLOURS.items():
                tall = counts[each, step] / highest * _CHART
                y -= tall
                size = f'width="{max(right - x - 0.5, 0.5):.1f}" height="{tall:.1f}"'
                self.add(f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{colour}"/>')
        self._y = foot + _GAP

    def _draw_processes(self) -> None:
        for node in self._schedule.nodes:
            self._label(node)
            for began, ended in self._spans("life.began", "life.ended", node):
                self.bar(began.at, ended.at if ended else self._ended, self._y, "life", "alive")
                if ended and ended.data["how"] != "left":
                    x = self.x(ended.at)
                    self.add(f'<line x1="{x}" x2="{x}" y1="{self._y - 1}" y2="{self._y + 13}" class="kill"/>')
            for began, ended in self._spans("paused", "resumed", node):
                self.bar(began.at, ended.at if ended else self._ended, self._y, "paused", "stopped")
            self._y += _LANE
        self._y += _GAP

    def _draw_faults(self) -> None:
        ends = {event.data["id"]: event for event in self._history.notes("fault.ended")}
        begun = self._history.notes("fault.began")
        for kind in sorted({event.data["kind"] for event in begun}):
            self._label(kind)
            for event in begun:
                if event.data["kind"] == kind:
                    end = ends.get(event.data["id"])
                    tooltip = ", ".join(f"{name} {value}" for name, value in event.data.items())
                    ended = end.at if end else self._ended
                    self.bar(event.at, ended, self._y, "fault", tooltip)
                    node = event.data["player"]
                    if self.x(ended) - self.x(event.at) > _LETTER_WIDTH * (len(node) + 1):
                        self.text(self.x(event.at) + 3, self._y + 9, node, "small")
            self._y += _LANE
        self._y += _GAP

    def _draw_axis(self) -> None:
        every = next(each for each in _MARKS_S if each * _MOST_MARKS >= self._length or each == _MARKS_S[-1])
        for seconds in range(0, int(self._length) + 1, every):
            self.text(self.x(self._began + seconds), self._y + 4, f"{seconds} s", "axis")

    def _label(self, words: str) -> None:
        self.text(_LEFT - 6, self._y + 9, words, "lane")

    # --- background and foreground ---------------------------------------------------------------

    def _storms(self) -> Iterator[str]:
        turns = sorted(
            (*self._history.notes("storm.began"), *self._history.notes("calm.began"), *self._healed()),
            key=lambda event: event.at,
        )
        for turn, following in zip(turns, (*turns[1:], None), strict=True):
            if turn.what == "storm.began":
                x, right = self.x(turn.at), self.x(following.at if following else self._ended)
                size = f'width="{right - x:.1f}" height="{self._y - _TOP:.0f}"'
                yield f'<rect x="{x:.1f}" y="{_TOP}" {size} class="storm"><title>storm</title></rect>'

    def _marks(self) -> Iterator[str]:
        for event in self._healed():
            x = self.x(event.at)
            yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{self._y - _GAP}" class="mark"/>'
            yield f'<text x="{x:.1f}" y="{_TOP - 10}" class="axis">healed</text>'

    def _healed(self) -> Iterable[Event]:
        return self._history.notes("healed")

    def _spans(self, began: str, ended: str, node: str) -> Iterator[tuple[Event, Event | None]]:
        ends = [event for event in self._history.notes(ended) if event.data["player"] == node]
        for event in self._history.notes(began):
            if event.data["player"] == node:
                yield event, next((end for end in ends if end.at >= event.at), None)


def draw_picture(history: History, schedule: Schedule, verdicts: list[Verdict]) -> str:
    """Return the picture as SVG."""
    return _Picture(history, schedule).draw(verdicts)
