"""Limits: how often an act may be done by a grant, and how many of its items may be open.

What is done by a delegation is also done by the grants before it in its chain, and counts against theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from vox_mesh.model.base.durations import short_duration
from vox_mesh.model.grants.capability import Act, Capability
from vox_mesh.model.grants.grant import Grant


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
