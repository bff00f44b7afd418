"""Bugs in what frameworks keep in the mesh."""

from __future__ import annotations

from typing import Final

from proof.mutants.planted_bug import Code, Instrument, PlantedBug, Sql

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
    PlantedBug(
        "removed-thread-read",
        "a thread of a graph is read though it was removed, or has expired",
        (Sql("conversations", "checkpoint", "AND NOT EXISTS (", "AND 1 + EXISTS ("),),
        ("test_a_removed_thread_is_gone_even_if_its_rows_are_left",),
        instrument=Instrument.FRAMEWORKS,
    ),
    PlantedBug(
        "item-popped-twice",
        "two that remove the last item of a session get the same one",
        (Code("vox_mesh.integrations.openai_agents:MeshSession._pop", ".rows.value", ".rows"),),
        ("test_each_of_several_gets_another_last_item",),
        instrument=Instrument.FRAMEWORKS,
    ),
    PlantedBug(
        "agent-run-renamed",
        "a run of an agent has another id in each attempt of its job",
        (
            Code(
                "vox_mesh.integrations.pydantic_ai:MeshDurability.get_default_run_id",
                "{context.job.job_id}:{number}",
                "{context.job.job_id}:{context.attempt}:{number}",
            ),
        ),
        ("test_a_later_attempt_gets_what_models_and_tools_returned",),
        instrument=Instrument.FRAMEWORKS,
    ),
    PlantedBug(
        "deferred-task-at-once",
        "a task of Django that is deferred runs at once",
        (
            Code(
                "vox_mesh.integrations.django:MeshTaskBackend.enqueue",
                "if task.run_after is not None:",
                "if False:",
            ),
        ),
        ("test_a_task_is_deferred_until_its_time",),
        instrument=Instrument.FRAMEWORKS,
    ),
    PlantedBug(
        "refusal-as-fault",
        "an application answers a refusal of the mesh as a fault of the server",
        (Code("vox_mesh.integrations.starlette:_answer", "answer.status", "500"),),
        ("test_errors_are_answered_as_a_node_answers_them",),
        instrument=Instrument.FRAMEWORKS,
    ),
)
"""What is planted in them."""
