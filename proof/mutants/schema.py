"""Bugs in the comparison of the schema, and in what a restore creates."""

from __future__ import annotations

from typing import Final

from proof.mutants.planted_bug import Code, Instrument, PlantedBug

SCHEMA_PLANTS: Final = (
    PlantedBug(
        "planted-trigger-accepted",
        "a trigger on the mesh's tables that is not the mesh's does not keep a node from starting",
        (
            Code(
                "vox_mesh.store.schema.unexpected:_is_expected",
                "return trigger.name in _our_triggers()",
                "return True",
            ),
        ),
        ("test_no_node_starts_on_a_planted_trigger", "test_a_faked_newer_version_hides_no_trigger"),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "backup-is-trusted",
        "a restore creates every table and index of the backup, whatever they call",
        (
            Code(
                "vox_mesh.store.schema.passive:_is_inert",
                """return "\\0" not in sql and not {";", "select"} & set(words) and not _calls(words)""",
                "return True",
            ),
        ),
        ("test_a_restore_refuses_what_it_does_not_know_and_creates_none_of_it",),
        instrument=Instrument.ATTACKS,
    ),
)
