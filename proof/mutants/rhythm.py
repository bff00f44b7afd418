"""Bugs in the rhythm."""

from __future__ import annotations

from typing import Final

from proof.mutants.planted_bug import Code, PlantedBug

RHYTHM_PLANTS: Final = (
    PlantedBug(
        "phase-counted-otherwise",
        "some nodes are a beat ahead with the phases of the bar",
        (
            Code(
                "vox_mesh.model.rhythm.plan:BeatFrame.of",
                "entry.policy.phase_at(beat.index)",
                'entry.policy.phase_at(beat.index + (hlc[-1] < "c"))',
            ),
        ),
        ("shared-phases",),
        ("phases",),
    ),
    PlantedBug(
        "claimed-outside-phase",
        "a job that is bound to a phase is claimed in any phase of the bar",
        (
            Code(
                "vox_mesh.model.rhythm.openings:_opening_of_bar",
                "Opening(span.begins_ms, span.ends_ms, span.ends_ms)",
                "Opening(begins_ms, ends_ms, ends_ms)",
            ),
        ),
        ("shared-phases",),
        ("phases",),
    ),
)
