"""Bugs that show when the store goes back in time."""

from __future__ import annotations

from typing import Final

from proof.mutants.plant import Code, Plant, Sql
from vox_mesh.store.statements import NOW_MS

_NOW: Final = f"({NOW_MS} << 10)"
_NEXT: Final = f"max(generation + 1, {_NOW})"
_SEEN: Final = (
    "AND beats >= ?5 AND coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'agent_oplog'), 0) >= ?6"
)
_UNSEEN: Final = "AND ?5 >= 0 AND ?6 >= 0"
_FAULTS: Final = ("default", "rollback")

ROLLBACK_PLANTS: Final = (
    Plant(
        "rollback-unnoticed",
        "a node does not compare the store with what it has seen of it",
        (
            *(
                Sql("oplog", name, _SEEN, _UNSEEN)
                for name in ("refuse_unless_current", "is_current", "refuse_unless_current_at")
            ),
            Code(
                "vox_mesh.model.store_memory:rollback_evidence",
                "if state.beats < memory.beats:",
                "return None\n    if state.beats < memory.beats:",
            ),
        ),
        ("log-goes-on",),
        ("oplog",),
        faults=_FAULTS,
    ),
    Plant(
        "token-without-time",
        "a token is one above the last that the store remembers, also after it has gone back",
        (
            Sql("locks", "take_free", f"{_NEXT}, i.value", "generation + 1, i.value"),
            Sql("locks", "take_one", f"{_NEXT}, ?10", "generation + 1, ?10"),
            Sql("locks", "raise_generation", f"generation = {_NEXT}", "generation = generation + 1"),
            Sql("locks", "raise_generation", f"?2, {_NOW})", "?2, 1)"),
            Sql("locks", "raise_above", f"max({_NOW}, 1 +", "max(0, 1 +"),
            Sql("locks", "take_if_next", f"max({_NOW}, 1 +", "max(0, 1 +"),
            Sql("locks", "pass_on", f"max({_NOW}, 1 +", "max(0, 1 +"),
            Sql("rollback", "raise_fences", f"max(?3, {NOW_MS} << 10) + 1048576", "?3"),
            Sql("rollback", "raise_fences", "max(generation + 1048576, excluded.generation)", "generation"),
        ),
        ("tokens-rise", "outside-takes-no-older"),
        ("locks",),
        faults=_FAULTS,
    ),
)
