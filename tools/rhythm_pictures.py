"""Pictures of the rhythm for the documentation, drawn from its own rules as SVG.

`python -m tools.rhythm_pictures [FOLDER]`
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from vox_mesh.model.rhythm.plan import Plan, PlanEntry
from vox_mesh.model.rhythm.policy import TempoPolicy
from vox_mesh.model.rhythm.score import Score
from vox_mesh.model.rhythm.tempo import Timeline, Window

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "pictures"

_WIDTH: Final = 920
_LEFT: Final = 30
_COLOURS: Final = {"plan": "#8fb8de", "work": "#f2c879", "review": "#9fd0a2"}
_HEAD: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
    'font-size="13">\n<rect width="100%" height="100%" fill="#ffffff"/>\n'
)


def _text(x: float, y: float, text: str, *, anchor: str = "start", colour: str = "#333333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{text}</text>\n'


def _beat(x: float, y: float, width: float, phase: str, label: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="34"'
    box = f'<rect {place} fill="{_COLOURS[phase]}" stroke="#ffffff"/>\n'
    return box + _text(x + width / 2, y + 22, label, anchor="middle")


def _mark(x: float, top: float, bottom: float, colour: str) -> str:
    return f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}" stroke="{colour}" stroke-width="2"/>\n'


def bars() -> str:
    """Draw four bars, of which the last two are faster: the change was announced two bars ahead."""
    slow = TempoPolicy.of_document({"cluster_id": "east", "initial_bpm": 12})
    fast = TempoPolicy.of_document({"cluster_id": "east", "initial_bpm": 20})
    plan = Plan(PlanEntry.of(slow))
    anchor_ms = plan.next_anchor_ms(0)
    plan = Plan(plan.head, [plan.followed_by(fast, fast.initial_bpm, anchor_ms, "more to do")])
    windows = list(plan.timeline.windows(0, anchor_ms + 2 * plan.head.tempo.bar_ms))
    scale = (_WIDTH - 2 * _LEFT) / windows[-1].end_ms
    drawn = _HEAD.format(width=_WIDTH, height=150)
    for window in windows:
        drawn += _bar(plan, plan.timeline, window, scale)
    drawn += _mark(_LEFT + 2, 28, 108, "#b03030") + _text(_LEFT + 8, 38, "announced", colour="#b03030")
    at = _LEFT + anchor_ms * scale
    drawn += _mark(at, 28, 108, "#b03030")
    drawn += _text(at + 6, 38, "anchor_ms: in force, on every node", colour="#b03030")
    legend = _LEFT
    for phase, colour in _COLOURS.items():
        drawn += f'<rect x="{legend}" y="124" width="14" height="14" fill="{colour}"/>\n'
        drawn += _text(legend + 20, 136, phase)
        legend += 90
    return drawn + "</svg>\n"


def _bar(plan: Plan, timeline: Timeline, window: Window, scale: float) -> str:
    policy = plan.at(window.start_ms).policy
    drawn, at_ms = "", window.start_ms
    while at_ms < window.end_ms:
        beat = timeline.beat_at(at_ms)
        phase = policy.phase_at(beat.index)
        drawn += _beat(_LEFT + at_ms * scale, 56, beat.beat_ms * scale, phase, str(beat.index))
        at_ms = beat.ends_ms
    x = _LEFT + window.start_ms * scale
    label = f"{policy.initial_bpm:g} bpm"
    return drawn + _mark(x, 50, 96, "#333333") + _text(x + 4, 108, label, colour="#777777")


def phrase() -> str:
    """Draw a score, and how its phrases shrink when they are retried."""
    score = Score.built_in()
    beats = sum(score.attempt(1).values())
    scale = (_WIDTH - 2 * _LEFT - 110) / beats
    attempts = range(1, score.retry.max_phrases + 1)
    drawn = _HEAD.format(width=_WIDTH, height=30 + 60 * len(attempts))
    for row, attempt in enumerate(attempts):
        y = 20 + 60 * row
        drawn += _text(_LEFT, y + 22, f"phrase {attempt}")
        for name, first, end in score.boundaries(attempt):
            for beat in range(first, end):
                drawn += _beat(_LEFT + 110 + beat * scale, y, scale, name, name if beat == first else "")
        x = _LEFT + 110 + sum(score.attempt(attempt).values()) * scale
        drawn += _mark(x, y - 6, y + 40, "#b03030") + _text(
            x - 6, y + 50, "cut off", anchor="end", colour="#b03030"
        )
    return drawn + "</svg>\n"


def main(folder: Path) -> None:
    """Draw all of them."""
    for name, draw in (("rhythm-bars", bars), ("rhythm-phrase", phrase)):
        (folder / f"{name}.svg").write_text(draw())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
