"""Bugs in locks and in optimistic writes."""

from __future__ import annotations

from typing import Final

from proof.mutants.plant import Code, Plant, Sql
from vox_mesh.store.schema.statements import NOW_MS

_NOW: Final = f"({NOW_MS} << 10)"
_NEXT: Final = f"max(generation + 1, {_NOW})"
_RAISED: Final = (
    f"fence_token = max({_NOW}, 1 + max(fence_token, ( "
    "SELECT generation FROM lock_generations WHERE scope_id = ?1 AND repository_id = ?2))),"
)

LOCK_PLANTS: Final = (
    Plant(
        "token-reused",
        "a lock that is taken again has the token that it had before",
        (
            Sql("locks", "take_fast_many", f"{_NEXT}, i.value", "1, i.value"),
            Sql("locks", "take_fast", f"{_NEXT}, ?10", "1, ?10"),
        ),
        ("tokens-rise", "outside-takes-no-older", "locks-linearizable"),
        ("locks",),
    ),
    Plant(
        "token-not-raised",
        "whoever waits for a lock gets it under its last holder's token",
        (
            Sql("locks", "take_if_next", _RAISED, "fence_token = fence_token,"),
            Sql("locks", "hand_off", _RAISED, "fence_token = fence_token,"),
        ),
        ("tokens-rise", "outside-takes-no-older", "locks-linearizable"),
        ("locks",),
    ),
    Plant(
        "taken-while-held",
        "whoever waits for a lock takes it though its holder's time is not over",
        (Sql("locks", "take", "AND b.blocks_until > NOW_ISO)", "AND false)"),),
        ("locks-linearizable", "outside-takes-no-older"),
        ("locks",),
    ),
    Plant(
        "renewed-by-anyone",
        "a hold that was lost is renewed",
        (
            Code("vox_mesh.locks.scripts:held_guard", "refusal=StaleFence.code)", "refusal=None)"),
            Sql("locks", "refuse_unless_held", "json_array_length(?3) <> (", "0 > ("),
        ),
        ("locks-linearizable", "outside-takes-no-older", "tokens-rise"),
        ("locks",),
    ),
    Plant(
        "released-by-anyone",
        "a late release ends the hold of whoever has the lock by then",
        (
            Sql(
                "locks",
                "release_fast_many",
                "(lock_key, fence_token, request_id) IN ( "
                "SELECT value ->> 'lock_key', value ->> 'fence_token', value ->> 'request_id' "
                "FROM json_each(?1) )",
                "lock_key IN (SELECT value ->> 'lock_key' FROM json_each(?1))",
            ),
            Sql("locks", "release_fast", "AND fence_token = ?8 AND request_id = ?9", "AND ?8 <> ?9"),
            Sql("locks", "release", "AND fence_token = ?4 AND request_id = ?5", "AND ?4 <> ?5"),
        ),
        ("locks-linearizable", "outside-takes-no-older"),
        ("locks",),
    ),
    Plant(
        "version-not-checked",
        "an optimistic write does not look whether the row has moved",
        (Code("vox_mesh.occ.tables:RowAddress.put", "AND {WRITTEN_AT} IS ?", "AND ? IS NOT 0"),),
        ("counters-linearizable", "no-lost-update"),
        ("counters",),
    ),
    Plant(
        "contention-told-as-written",
        "a write that found the row moved says that it was made",
        (Code("vox_mesh.occ.occ:Occ._send", "if changed else None", "or None"),),
        ("counters-linearizable", "no-lost-update"),
        ("counters",),
    ),
)
