"""Boundaries: the ends of phases and bars."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from itertools import accumulate

from vox_mesh.model.rhythm.tempo import Beat


class Until(StrEnum):
    """The boundary at which a lock ends."""

    PHASE = "phase"
    BAR = "bar"


def end_of(until: Until, beat: Beat, phase_beats: Mapping[str, int]) -> int:
    """Return when the phase or bar that contains a beat ends."""
    if until is Until.BAR:
        return beat.window_ends_ms
    last = next(beats for beats in accumulate(phase_beats.values()) if beats >= beat.index)
    return beat.window_ms + last * beat.beat_ms
