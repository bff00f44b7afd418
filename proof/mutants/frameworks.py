"""Bugs in what frameworks keep in the mesh."""

from __future__ import annotations

from typing import Final

from proof.mutants.planted_bug import Code, Instrument, PlantedBug

FRAMEWORK_PLANTS: Final = (
    PlantedBug(
        "graph-not-fenced",
        "a worker that has lost its job writes to the thread of a graph",
        (Code("vox_mesh.integrations.langgraph:MeshCheckpointSaver._write", "*self._guards, ", ""),),
        ("test_a_worker_that_has_lost_its_claim_writes_to_no_thread",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "stored-type-created",
        "the bytes of a checkpoint choose which class is created from them",
        (
            Code(
                "vox_mesh.integrations.langgraph:safe_serializer",
                "allowed_msgpack_modules=None",
                "allowed_msgpack_modules=True",
            ),
        ),
        ("test_stored_bytes_that_name_a_function_do_not_call_it",),
        instrument=Instrument.ATTACKS,
    ),
)
"""What is planted in them."""
