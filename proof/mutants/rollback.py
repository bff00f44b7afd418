"""Bugs that show when the store, or its clock, goes back in time."""

from __future__ import annotations

from typing import Final

from proof.mutants.locks import CLOCK_TOKEN
from proof.mutants.planted_bug import Code, PlantedBug, Sql
from vox_mesh.store.schema.statements import NOW_MS

_NOW: Final = f"({NOW_MS} << 10)"
_FAULTS: Final = ("rollback",)

ROLLBACK_PLANTS: Final = (
    PlantedBug(
        "token-without-time",
        "a token is above the tokens in the database, but not above the time",
        (
            *(Sql("locks", name, _NOW, "0") for name in ("take_fast_many", "take_if_next", "hand_off")),
            Sql("locks", "take_fast", CLOCK_TOKEN, "0"),
            Sql(
                "locks",
                "raise_generation",
                f"DO UPDATE SET generation = max({_NOW},",
                "DO UPDATE SET generation = max(0,",
            ),
            Sql("locks", "raise_above", f"max({_NOW}, (SELECT", "max(0, (SELECT"),
        ),
        ("tokens-rise", "outside-takes-no-older"),
        ("locks",),
        faults=("unseen-rollback",),
    ),
    PlantedBug(
        "rollback-not-noticed",
        "a node does not notice that the database was rolled back",
        (
            Code(
                "vox_mesh.oplog.rollback:Rollback.is_behind",
                "return is_fenced or rollback_evidence(memory, state) is not None",
                "return False",
            ),
            Code(
                "vox_mesh.oplog.rollback:Rollback.fence_if_behind",
                "evidence = rollback_evidence(memory, state)",
                "evidence = None",
            ),
        ),
        ("log-goes-on", "one-end", "nothing-unexpected"),
        ("oplog",),
        faults=_FAULTS,
    ),
    PlantedBug(
        "clock-step-not-noticed",
        "a node follows every step of the database's clock",
        (
            Code(
                "vox_mesh.nodes.clock:MeshClock._is_step",
                "return low_ms > most or high_ms < -most",
                "return False",
            ),
        ),
        ("locks-linearizable", "outside-takes-no-older", "claims-apart", "never-after-expiry"),
        ("locks",),
        faults=("database-clock",),
    ),
)
