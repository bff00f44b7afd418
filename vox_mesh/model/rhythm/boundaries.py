"""Boundaries: where the phase or the bar ends that a moment is in."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from itertools import accumulate

from vox_mesh.model.rhythm.tempo import Beat


class Until(StrEnum):
    """Up to which boundary something is held."""

    PHASE = "phase"
    BAR = "bar"


def end_of(until: Until, beat: Beat, phase_beats: Mapping[str, int]) -> int:
    """When the phase or the bar of a beat ends; the phases share out the bar."""
    if until is Until.BAR:
        return beat.window_ends_ms
    last = next(beats for beats in accumulate(phase_beats.values()) if beats >= beat.index)
    return beat.window_ms + last * beat.beat_ms
