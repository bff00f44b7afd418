"""Bugs of coding agents as jobs. The tests of attacks find them."""

from __future__ import annotations

from typing import Final

from proof.mutants.planted_bug import Code, Instrument, PlantedBug

_PRIVATE: Final = '{**plain, "GIT_DIR": str(place), "GIT_WORK_TREE": str(self._work)}'

AGENT_PLANTS: Final = (
    PlantedBug(
        "agent-leaves-its-folder",
        "a path with `..` of an agent is written by its worker, wherever it leads",
        (Code("vox_mesh.jobs.agents.confined_files:ConfinedFiles._parts", '".." in parts or ', ""),),
        ("test_an_agent_reaches_no_file_outside_of_its_folder_through_its_worker",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "agent-follows-links",
        "a link that an agent makes in its folder leads its worker out of it",
        (
            Code(
                "vox_mesh.jobs.agents.confined_files:ConfinedFiles._parent",
                "os.open(part, _FOLDER, dir_fd=current)",
                "os.open(part, _FOLDER & ~os.O_NOFOLLOW, dir_fd=current)",
            ),
        ),
        ("test_an_agent_reaches_no_file_outside_of_its_folder_through_its_worker",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "agent-outlives-its-claim",
        "the processes of an agent go on after its worker has lost the claim",
        (
            Code(
                "vox_mesh.jobs.agents.agent_process:AgentProcess._stop",
                "self.group.end()",
                "return",
            ),
        ),
        ("test_an_agent_does_not_outlive_its_claim",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "settings-of-the-worktree-obeyed",
        "the worker compares files with the settings of a worktree, in which an agent has named a program",
        (Code("vox_mesh.jobs.agents.checkout:Checkout._private", f"yield {_PRIVATE}", "yield {}"),),
        ("test_no_setting_of_a_worktree_runs_a_program_of_an_agent",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "replaced-folder-compared",
        "the worker keeps the files of a folder to which an agent has led it by a link",
        (Code("vox_mesh.jobs.agents.runner:_Attempt._changes", "if fault is None", "if True"),),
        ("test_an_agent_that_replaces_its_folder_has_no_files_of_others_kept",),
        instrument=Instrument.ATTACKS,
    ),
)
