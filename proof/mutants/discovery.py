"""Bugs of the search for a mesh: agents have two instead of one, or follow one that others prepared."""

from __future__ import annotations

from typing import Final

from proof.mutants.planted_bug import Code, Instrument, PlantedBug

DISCOVERY_PLANTS: Final = (
    PlantedBug(
        "mesh-per-worktree",
        "a linked worktree has a mesh of its own",
        (
            Code(
                "vox_mesh.settings.discovery:_repository_at",
                "return _Repository(_home_of(os.path.realpath(common)))",
                "return _Repository(os.path.join(folder, FOLDER))",
            ),
        ),
        ("test_agents_in_two_worktrees_share_one_mesh",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "mesh-above-unchecked",
        "a home found upwards is used though others may have prepared it",
        (
            Code(
                "vox_mesh.settings.discovery:_location",
                "if not is_here and os.path.lexists(home):",
                "if False:",
            ),
        ),
        ("test_a_mesh_above_that_others_may_have_prepared_is_refused",),
        instrument=Instrument.ATTACKS,
    ),
)
