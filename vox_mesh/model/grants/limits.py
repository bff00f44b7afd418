"""Limits: how often an act may be done by a grant, how many of its items may be open, and its budget.

What is done by a delegation is also done by the grants before it in its chain, and counts against theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadValue
from vox_mesh.model.base.durations import short_duration
from vox_mesh.model.grants.capability import EXECUTE, SCHEDULE, Act, Capability
from vox_mesh.model.grants.grant import Grant
from vox_mesh.model.rhythm.budgets import Budget

MILLI: Final = 1_000
"""Beats are counted in thousandths: sums of fractions would not be exact."""

_MAX_COST: Final = 2**53


class ItemKind(StrEnum):
    """What an act leaves: it is open until it has ended."""

    JOB = "job"
    TAKE = "take"
    LOCK = "lock"
    MESSAGE = "message"
    ACT = "act"
    """The act itself: it is never open."""


class Item(NamedTuple):
    """An item by its kind and id. The same item counts once."""

    kind: ItemKind
    item_id: str


class Use(NamedTuple):
    """An act, and the item that it leaves."""

    act: Act
    item: Item


class LimitedUse(NamedTuple):
    """The items that count against the limits of one capability of a grant; `place` is where it stands."""

    grant_id: str
    place: int
    capability: Capability
    items: Sequence[Item]

    def wait_ms(self, used: Sequence[int], now_ms: int) -> int | None:
        """Return when its rate has room for the items, in milliseconds from now, or `None` if never.

        `used` are the times of earlier uses, the newest first.
        """
        rate = self.capability.rate
        if rate is None:
            return 0
        room = rate.times - len(self.items)
        if room < 0:
            return None
        return 0 if len(used) <= room else max(0, used[room] + rate.window_ms - now_ms)

    def is_full(self, open_items: int) -> bool:
        """Return whether its items would be too many, with others that are open."""
        limit = self.capability.open_items
        return limit is not None and open_items + len(self.items) > limit

    def rate_hint(self, wait_ms: int | None) -> str:
        """Return what to do after its rate was exceeded."""
        limit = f"grant {self.grant_id} allows `{self.capability.act}` {self.capability.rate}"
        if wait_ms is None:
            return f"{limit}: ask for fewer than {len(self.items)} at once"
        return f"{limit}: try again in {short_duration(wait_ms)}"

    def open_hint(self, count: int) -> str:
        """Return what to do after as many items were open as may be."""
        return (
            f"grant {self.grant_id} allows {self.capability.open_items} open items"
            f" by `{self.capability.act}`, and {count} are open: try again when one has ended"
        )


def limited_uses(chain: Iterable[Grant], uses: Sequence[Use]) -> list[LimitedUse]:
    """Return what these uses count against, in a grant and the ones it was delegated from."""
    found: list[LimitedUse] = []
    for grant in chain:
        by_place: dict[int, dict[Item, None]] = {}
        for act, item in uses:
            capability = grant.terms.find(act)
            if capability is not None and capability.is_limited:
                by_place.setdefault(grant.terms.capabilities.index(capability), {})[item] = None
        found += [
            LimitedUse(grant.grant_id, place, grant.terms.capabilities[place], list(items))
            for place, items in by_place.items()
        ]
    return found


class GrantBudget(NamedTuple):
    """The budget of a grant, in thousandths of beats: what the jobs that are scheduled by it may cost."""

    grant_id: str
    mbu: int

    def hint(self, reserved_mbu: int) -> str:
        """Return what to do after it was exceeded."""
        left = max(0, self.mbu - reserved_mbu) / MILLI
        return (
            f"grant {self.grant_id} has {left:g} of {self.mbu / MILLI:g} beats left:"
            " give the jobs a smaller max_bu, or ask the owner for another grant"
        )


def budgets_of(chain: Iterable[Grant], acts: Iterable[Act]) -> list[GrantBudget]:
    """Return the budgets that these acts use of, in a grant and the ones it was delegated from."""
    if not any(act.action in (SCHEDULE, EXECUTE) for act in acts):
        return []
    found = ((grant.grant_id, grant.terms.budget) for grant in chain)
    return [GrantBudget(grant_id, budget * MILLI) for grant_id, budget in found if budget is not None]


def most_cost(kind: str, core: Mapping[str, Any]) -> int:
    """Return what a job may cost, in thousandths of beats. Raises `BadValue` if it is not limited."""
    stop_bu = Budget.of_document(core.get("budget") or {}).stop_bu
    if stop_bu is None:
        raise BadValue(
            f"job of kind {kind} must have a budget with max_bu, since the grant has a budget",
            hint='add a budget to the job, such as {"max_bu": 10}',
        )
    return min(math.ceil(stop_bu * MILLI), _MAX_COST)
