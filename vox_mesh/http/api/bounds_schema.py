"""JSON schemas of scores and budgets in request bodies, whose rules are checked by code."""

from __future__ import annotations

from typing import Any, Final

from vox_mesh.model.rhythm.budgets import BAR_DIGITS, WAITS
from vox_mesh.model.rhythm.costs import CLASSED, MOST, PLAIN
from vox_mesh.model.rhythm.policy import PHASES
from vox_mesh.model.rhythm.score import CHECKPOINT, DEFER, MAX_PHRASES, MAX_STEPS
from vox_mesh.model.rhythm.tempo import FASTEST_BPM, LONGEST_BAR, SLOWEST_BPM


def _map(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


def _beats(least: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": LONGEST_BAR}


def _amount(least: float = 0, most: float = MOST) -> dict[str, Any]:
    return {"type": "number", "minimum": least, "maximum": most}


_AMOUNT: Final = _amount()


_BY_CLASS: Final = {
    "type": "object",
    "propertyNames": {"pattern": r"^[^\x00]+$"},
    "additionalProperties": _AMOUNT,
}
_STEPS: Final = {"type": "array", "uniqueItems": True, "maxItems": MAX_STEPS}
_THREE_BEATS: Final = {
    "required": ["bar_len"],
    "properties": {
        "bar_len": {"const": len(PHASES)},
        "phases": {"properties": {phase: {"const": 1} for phase in PHASES}},
    },
}
"""A schema can't state that phases sum to the bar: this is a combination that does."""

SCORE: Final = _map(
    {
        "tempo": {"type": "number", "minimum": SLOWEST_BPM, "maximum": FASTEST_BPM},
        "bar_len": _beats(len(PHASES)),
        "phases": _map(
            dict.fromkeys(PHASES, _beats(1)),
            required=[*PHASES],
            description="They sum to bar_len, 8 by default.",
        ),
        "wait_budget": _map({"help": _beats(0), "io": _beats(0)}),
        "retry": _map(
            {
                "max_phrases": {"type": "integer", "minimum": 1, "maximum": MAX_PHRASES},
                "backoff": {"enum": ["geometric", "none"]},
            }
        ),
        "escalation": _map(
            {
                "on_wait_exhausted": {
                    **_STEPS,
                    "items": {"type": "string", "pattern": "^emit:[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"},
                    "description": "One of them may be fallback:NAME.",
                },
                "on_overrun": {**_STEPS, "items": {"enum": [CHECKPOINT, DEFER]}},
            }
        ),
    },
    anyOf=[{"properties": {"phases": False}}, _THREE_BEATS],
)
"""A score."""

BUDGET: Final = _map(
    {
        "max_bu": _AMOUNT,
        "phase_caps": _map(dict.fromkeys(PHASES, _AMOUNT)),
        "wait_caps": _map(dict.fromkeys(WAITS, _AMOUNT)),
        "hard_end": {
            "anyOf": [
                {"type": "string", "pattern": rf"^bar\+[0-9]{{1,{BAR_DIGITS}}}$"},
                {
                    "type": "string",
                    "pattern": r"^20[0-9]{2}-0[1-9]-[01][1-9]T[01][0-9]:[0-5][0-9]:[0-5][0-9]Z$",
                },
            ]
        },
        "charge_to": {"type": "string", "pattern": "^[!-~]{1,200}$"},
        "per_beat": _map({**dict.fromkeys(PLAIN, _AMOUNT), **dict.fromkeys(CLASSED, _BY_CLASS)}),
        "thresholds": _map(
            {"warn": _amount(0, 0.8), "claims": _amount(0.8, 1.25), "work": _amount(1.25)},
            description="Any shares will do, as long as warn <= claims <= work.",
        ),
    }
)
"""A budget."""
