"""Bugs between nodes of two versions."""

from __future__ import annotations

from typing import Final

from proof.chaos.builds import NEXT, THIS
from proof.mutants.planted_bug import Code, Instrument, PlantedBug

_BUILDS: Final = (THIS, NEXT)
_WORKLOADS: Final = ("pruning", "writes", "jobs")

UPGRADE_PLANTS: Final = (
    PlantedBug(
        "feature-not-awaited",
        "a node uses what is new although a live node is too old for it",
        (
            Code(
                "vox_mesh.nodes.nodes:Features.is_known_to_all",
                "return await self.oldest_live_version() >= version",
                "return True",
            ),
        ),
        ("mixed-versions",),
        workloads=_WORKLOADS,
        instrument=Instrument.FILE,
        faults=("clock-drift",),
        builds=_BUILDS,
    ),
    PlantedBug(
        "newer-schema-refused",
        "code of the previous version does not start on a schema that was only added to",
        (
            Code(
                "vox_mesh.store.schema.schema:refuse_if_too_new",
                "if needed > VERSION:",
                "if version > VERSION:",
            ),
        ),
        ("mixed-versions",),
        workloads=_WORKLOADS,
        instrument=Instrument.FILE,
        faults=("kill",),
        builds=_BUILDS,
    ),
)
