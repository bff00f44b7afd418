"""Bugs in the store: idempotency keys, responses and reported outcomes."""

from __future__ import annotations

from typing import Final

from proof.mutants.planted_bug import Code, PlantedBug

_BATCH: Final = "vox_mesh.store.write.script_batch"

STORE_PLANTS: Final = (
    PlantedBug(
        "retried-without-key",
        "a request without a response is sent again, and takes effect again",
        (Code(f"{_BATCH}:OptimisticBatch._store_keys", "scripts = self._scripts", "scripts = ()"),),
        ("effect-once", "counters-linearizable", "no-lost-update"),
        ("effects", "counters"),
    ),
    PlantedBug(
        "doubt-told-as-no",
        "an unknown outcome is reported as not applied",
        (
            Code(
                "vox_mesh.store.write.combiner:_outcome_unknown",
                "return unknown",
                "return Unreachable(reason)",
            ),
        ),
        ("counters-linearizable", "no-lost-update", "effect-once", "effect-none-lost"),
        ("counters", "effects"),
    ),
    PlantedBug(
        "answered-before-commit",
        "callers are answered when the request is sent, not when it is committed",
        (
            Code(
                "vox_mesh.store.write.sender:Sender._attempt",
                "        in_flight.fault = fault\n        if",
                "        in_flight.fault = fault\n"
                "        return [Outcome(each.key) for each in in_flight.scripts]\n"
                "        if",
            ),
        ),
        ("effect-none-lost", "chains-complete", "counters-linearizable", "no-lost-update"),
        ("effects", "counters", "oplog"),
    ),
    PlantedBug(
        "second-script-dropped",
        "the second script of a batch is left out",
        (
            Code(
                f"{_BATCH}:_runs",
                "if script.statements or script.answer is not None:",
                "if index != 1 and (script.statements or script.answer is not None):",
            ),
        ),
        ("effect-none-lost", "counters-linearizable", "no-lost-update"),
        ("effects", "counters", "writes"),
    ),
    PlantedBug(
        "two-probes",
        "a half-open circuit admits any number of calls",
        (
            Code(
                "vox_mesh.store.write.breaker:Breaker.is_rejecting",
                "return self._is_probing or not self._storage.has_timed_out",
                "return not self._storage.has_timed_out",
            ),
        ),
        ("one-probe",),
        ("writes", "effects"),
    ),
    PlantedBug(
        "key-forgotten-at-once",
        "an idempotency key is deleted after the response, though the request may be repeated",
        (
            Code(
                "vox_mesh.store.write.combiner:Combiner._settle",
                "if script.leaves_key and not script.may_come_again:",
                "if script.leaves_key:",
            ),
            Code(
                "vox_mesh.store.write.idempotency_keys:IdempotencyKeyPruner._due_count",
                "surplus = len(answered) - _MAX_KEYS",
                "return len(answered)",
            ),
        ),
        ("effect-once", "counters-linearizable", "no-lost-update"),
        ("effects", "counters"),
    ),
)
