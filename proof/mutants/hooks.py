"""Bugs in hooks of the hosts of agents."""

from __future__ import annotations

from typing import Final

from proof.mutants.planted_bug import Code, Instrument, PlantedBug

HOOK_PLANTS: Final = (
    PlantedBug(
        "held-edit-allowed",
        "a hook allows an edit of a file that another agent holds",
        (
            Code(
                "vox_mesh.hosts.hooks.edits:check_edit",
                "for some in steps for each in some]",
                "for some in () for each in some]",
            ),
        ),
        ("test_no_held_file_is_edited_by_its_own_path",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "edit-through-a-link",
        "a hook checks a symbolic link, and not the file that it leads to",
        (
            Code(
                "vox_mesh.locks.file_paths:Project.paths_of",
                "dict.fromkeys((entry_at(target), _resolved(target)))",
                "(entry_at(target),)",
            ),
        ),
        ("test_no_held_file_is_edited_through_a_link",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "edit-in-another-tree",
        "a hook takes a file in another work tree of the repository for another file",
        (
            Code(
                "vox_mesh.locks.file_paths:Project.path_of_entry",
                "repository_of(tree) == self.repository",
                "repository_of(tree) is None",
            ),
        ),
        ("test_no_held_file_is_edited_in_another_work_tree",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "commit-in-a-shell-unseen",
        "a hook does not find a commit within a command line that a shell is given",
        (Code("vox_mesh.hosts.hooks.shell:_find_commit", "elif name in _SHELLS and depth:", "elif False:"),),
        ("test_no_held_file_is_committed_by_a_shell",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "mail-without-a-fence",
        "a hook gives a model the text of a message as if it were its own",
        (Code("vox_mesh.hosts.hooks.mail:_fenced", ":\\n{fenced}", ":\\n{cut}{fenced}"),),
        ("test_no_mail_leaves_its_fence",),
        instrument=Instrument.ATTACKS,
    ),
)
