"""Bugs in grants."""

from __future__ import annotations

from typing import Final

from proof.mutants.planted_bug import PlantedBug, Sql

_GUARDED: Final = (
    *(("grants", "refuse_without_grant"), ("messages", "send"), ("messages", "send_one")),
    *(("locks", "take_fast"), ("locks", "take_fast_many"), ("locks", "hand_off")),
)
"""The statements that check a grant, or that it needs none."""

_WITHOUT: Final = "CASE WHEN by_grant IS NULL THEN"
_BY_GRANT: Final = "ELSE EXISTS ("
_KEEP: Final = "DELETE FROM grant_reservations WHERE false AND"

GRANT_PLANTS: Final = (
    PlantedBug(
        "no-grant-needed",
        "an admitted agent that names no grant may do everything",
        tuple(Sql(*each, _WITHOUT, f"{_WITHOUT} 1 OR") for each in _GUARDED),
        ("nothing-without-grant",),
        ("grants",),
    ),
    PlantedBug(
        "revoked-until-next-look",
        "a grant that was revoked after it was looked up is taken to be in force",
        tuple(Sql(*each, _BY_GRANT, f"ELSE 1 OR {_BY_GRANT[5:]}") for each in _GUARDED),
        ("revoked-at-commit",),
        ("grants",),
    ),
    PlantedBug(
        "delegations-outlive-grant",
        "the delegations of a revoked grant stay in force",
        (Sql("grants", "revoke", "g.parent_id = ended.grant_id", "g.parent_id = ''"),),
        ("revoked-at-commit",),
        ("grants",),
    ),
    PlantedBug(
        "grant-budget-not-checked",
        "a grant schedules jobs after its budget is used up",
        (
            Sql(
                "grant_reservations",
                "refuse_over_budget",
                "g.reserved_mbu > b.value ->> 1",
                "g.reserved_mbu > 1e18",
            ),
        ),
        ("grant-budget-settled",),
        ("limits",),
    ),
    PlantedBug(
        "unspent-not-returned",
        "a job that has ended keeps what it might have cost of the budget of its grant",
        (Sql("grant_reservations", "settle", "- unspent.mbu", "- 0 * unspent.mbu"),),
        ("grant-budget-settled",),
        ("limits",),
    ),
    PlantedBug(
        "settled-twice",
        "what a job did not cost of the budget of its grant is returned again",
        (
            Sql("grant_reservations", "remove_settled", "DELETE FROM grant_reservations WHERE", _KEEP),
            Sql("grant_reservations", "remove_all_settled", "DELETE FROM grant_reservations WHERE", _KEEP),
        ),
        ("grant-budget-settled",),
        ("limits",),
    ),
    PlantedBug(
        "rate-not-checked",
        "an agent does something more often than its grant allows",
        (Sql("grant_usage", "refuse_if_often", "ELSE l.times <", "ELSE 1e9 <"),),
        ("grant-rate-kept",),
        ("limits",),
    ),
)
