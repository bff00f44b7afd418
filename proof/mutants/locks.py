"""Bugs in locks and in optimistic writes."""

from __future__ import annotations

from typing import Final

from proof.mutants.planted_bug import Code, Instrument, PlantedBug, Sql
from vox_mesh.store.schema.statements import NOW_MS, RAW_MS

_NOW: Final = f"({NOW_MS} << 10)"
_AFTER_GENERATION: Final = (
    "iif(typeof(generation) = 'integer' AND generation < 9007199254740991, generation + 1, "
    "abs(-9223372036854775807 - 1 - 0 * length(generation)))"
)
CLOCK_TOKEN: Final = f"(({RAW_MS} + coalesce(correction_ms, 0)) << 10)"
_RAISED: Final = (
    f"fence_token = max({_NOW}, (SELECT {_AFTER_GENERATION} FROM ( "
    "SELECT max(fence_token, generation) AS generation FROM lock_generations "
    "WHERE scope_id = ?1 AND repository_id = ?2))),"
)

LOCK_PLANTS: Final = (
    PlantedBug(
        "token-reused",
        "a lock that is acquired again gets the token it had before",
        (
            Sql("locks", "take_fast_many", f"max({_NOW}, {_AFTER_GENERATION}), i.value", "1, i.value"),
            Sql("locks", "take_fast", f"max({CLOCK_TOKEN}, {_AFTER_GENERATION}), ?10", "1, ?10"),
        ),
        ("tokens-rise", "outside-takes-no-older", "locks-linearizable"),
        ("locks",),
    ),
    PlantedBug(
        "token-not-raised",
        "a waiter gets a lock under its last holder's token",
        (
            Sql("locks", "take_if_next", _RAISED, "fence_token = fence_token,"),
            Sql("locks", "hand_off", _RAISED, "fence_token = fence_token,"),
        ),
        ("tokens-rise", "outside-takes-no-older", "locks-linearizable"),
        ("locks",),
    ),
    PlantedBug(
        "taken-while-held",
        "a waiter takes a lock before its holder's lease is over",
        (Sql("locks", "take", "AND b.blocks_until > NOW_ISO)", "AND false)"),),
        ("locks-linearizable", "outside-takes-no-older"),
        ("locks",),
    ),
    PlantedBug(
        "renewed-by-anyone",
        "a lost lock is renewed",
        (
            Code("vox_mesh.locks.scripts:held_guard", "refusal=StaleFence.code)", "refusal=None)"),
            Sql("locks", "refuse_unless_held", "json_array_length(?3) <> (", "0 > ("),
        ),
        ("locks-linearizable", "outside-takes-no-older", "tokens-rise"),
        ("locks",),
    ),
    PlantedBug(
        "released-by-anyone",
        "a late release releases the lock of the next holder",
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
    PlantedBug(
        "another-agents-lock-renewed",
        "an agent that acquires what another agent holds gets that lock and its token",
        (
            Code(
                "vox_mesh.locks.agent_locks:LockOwner.owns",
                "(holder.holder_node, holder.holder_agent) == self",
                "holder.holder_node == self.node",
            ),
        ),
        ("test_acquiring_again_never_hands_out_the_lock_of_another_agent",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "session-outlives-process",
        "a session lock is held although its process has ended",
        (
            Code(
                "vox_mesh.locks.sessions:LockSessions._ended",
                "all(self._has_ended(each.process) for each in group)",
                "False",
            ),
        ),
        ("test_a_session_lock_does_not_outlive_its_process",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "live-session-given-away",
        "a session lock is taken over although its process runs",
        (
            Code(
                "vox_mesh.locks.sessions:LockSessions._ended",
                "all(self._has_ended(each.process) for each in group)",
                "True",
            ),
        ),
        ("test_a_session_lock_does_not_outlive_its_process",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "kept-by-anothers-heartbeats",
        "the heartbeats of one agent renew the lock of another, which is silent",
        (
            Code(
                "vox_mesh.locks.sessions:LockSessions.heartbeat",
                "each.request_id in ttls and owner.owns(each)",
                "each.request_id in ttls",
            ),
        ),
        ("test_the_lock_of_a_silent_agent_is_not_kept_by_the_heartbeats_of_another",),
        instrument=Instrument.ATTACKS,
    ),
    PlantedBug(
        "version-not-checked",
        "an optimistic write does not check the version of the row",
        (Code("vox_mesh.occ.tables:RowAddress.put", "AND {WRITTEN_AT} IS ?", "AND ? IS NOT 0"),),
        ("counters-linearizable", "no-lost-update"),
        ("counters",),
    ),
    PlantedBug(
        "contention-told-as-written",
        "a write that met a conflict is acknowledged",
        (Code("vox_mesh.occ.occ:Occ._send", "if changed else None", "or None"),),
        ("counters-linearizable", "no-lost-update"),
        ("counters",),
    ),
)
