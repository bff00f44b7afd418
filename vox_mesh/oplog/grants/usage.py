"""The use of grants with rates and limits on open items, counted in the transactions of what is done by them.

Each use is a row, so rates are exact: within any period of their length, there are at most as many uses.
What jobs cost of budgets is counted by their reservations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import orjson

from vox_mesh.errors import LimitReached, OverGrantBudget, RateExceeded, TooManyOpen
from vox_mesh.model.grants.capability import Act
from vox_mesh.model.grants.grant import Grant
from vox_mesh.model.grants.limits import MILLI, Item, ItemKind, LimitedUse, Use, budgets_of, limited_uses
from vox_mesh.oplog.grants.reservations import end_reservations, read_reserved
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Statement, new_key
from vox_mesh.store.store import Store

_SQL: Final = named("grant_usage")


class UsageFigures(NamedTuple):
    """How much of a limit is used: the times of the uses within its window, and how many items are open."""

    used_ms: Sequence[int]
    open_items: int
    now_ms: int


class LimitUse(NamedTuple):
    """How much of a limit of a grant is used; of its budget, in beats. `allows` is what it is a limit of."""

    grant_id: str
    allows: str
    limit: str
    used: float
    most: float


class GrantLimits:
    """The limits of a grant and of the ones it was delegated from, and what a script uses of them."""

    def __init__(self, mesh: tuple[str, str], chain: Sequence[Grant], acts: Sequence[Act]) -> None:
        """Unless it is counted otherwise, each act is one use."""
        self._mesh = mesh
        self._chain = chain
        self.budgets = budgets_of(chain, acts)
        self.uses: Sequence[LimitedUse] = ()
        self.count(Use(act, Item(ItemKind.ACT, new_key())) for act in acts)

    def count(self, uses: Iterable[Use]) -> None:
        """Count these uses, and no others."""
        self.uses = limited_uses(self._chain, list(uses))

    @property
    def statements(self) -> tuple[Statement, ...]:
        """Return the statements that record the uses, and refuse the script if that exceeds a limit."""
        return usage_statements(self._mesh, self.uses)

    async def explain(self, store: Store, error: LimitReached) -> None:
        """Complete an error about a limit with a hint that says when it is possible again."""
        if isinstance(error, OverGrantBudget):
            reserved = await read_reserved(store, [each.grant_id for each in self.budgets])
            found = [(each.mbu - reserved.get(each.grant_id, 0), each) for each in self.budgets]
            left, budget = min(found)
            error.hint = budget.hint(budget.mbu - left)
            return
        figures = list(zip(self.uses, await read_usage(store, self.uses), strict=True))
        if isinstance(error, TooManyOpen):
            counts = ((use, found.open_items) for use, found in figures)
            error.hint = next((use.open_hint(count) for use, count in counts if use.is_full(count)), "")
            return
        waits = [(use, use.wait_ms(found.used_ms, found.now_ms)) for use, found in figures]
        use, wait_ms = max(waits, key=lambda each: (each[1] is None, each[1] or 0))
        error.hint = use.rate_hint(wait_ms)
        error.retry_in_s = None if wait_ms is None else wait_ms / 1_000


def usage_statements(mesh: tuple[str, str], uses: Sequence[LimitedUse]) -> tuple[Statement, ...]:
    """Return the statements that record uses, and refuse the script if that exceeds a limit."""
    if not uses:
        return ()
    values = _values(mesh, uses)
    return (
        Statement(_SQL["forget"], values),
        Statement(_SQL["record"], values),
        Statement(_SQL["refuse_if_many_open"], values, refusal=TooManyOpen.code),
        Statement(_SQL["refuse_if_often"], values, refusal=RateExceeded.code),
    )


def end_usage(mesh: tuple[str, str]) -> tuple[Statement, ...]:
    """Return what forgets the uses and reservations of grants which are not in force any more."""
    return Statement(_SQL["end"], mesh), end_reservations(mesh)


async def read_usage(store: Store, uses: Sequence[LimitedUse]) -> list[UsageFigures]:
    """Return the figures of limits, in their order."""
    rows = await store.read(_SQL["figures"], _values(store.mesh_id, uses), fresh=True)
    return [UsageFigures(orjson.loads(row["used"]), row["open"], row["now_ms"]) for row in rows]


async def uses_of(store: Store, grants: Sequence[Grant]) -> list[LimitUse]:
    """Return how much is used of all limits of grants in force, also by what was delegated from them."""
    limited = [
        LimitedUse(grant.grant_id, place, capability, ())
        for grant in grants
        for place, capability in enumerate(grant.terms.capabilities)
        if capability.is_limited
    ]
    found: list[LimitUse] = []
    for use, figures in zip(limited, await read_usage(store, limited) if limited else (), strict=True):
        rate, max_open = use.capability.rate, use.capability.open_items
        allows = str(use.capability.act)
        if rate is not None:
            found.append(LimitUse(use.grant_id, allows, f"rate {rate}", len(figures.used_ms), rate.times))
        if max_open is not None:
            found.append(LimitUse(use.grant_id, allows, f"open {max_open}", figures.open_items, max_open))
    budgets = {each.grant_id: each.terms.budget for each in grants if each.terms.budget is not None}
    reserved = await read_reserved(store, list(budgets)) if budgets else {}
    return found + [
        LimitUse(grant_id, "jobs", f"budget {budget}", reserved.get(grant_id, 0) / MILLI, budget)
        for grant_id, budget in budgets.items()
    ]


def _values(mesh: tuple[str, str], uses: Sequence[LimitedUse]) -> tuple[str, str, str]:
    rows = []
    for use in uses:
        rate, max_open = use.capability.rate, use.capability.open_items
        times, window_ms = (None, None) if rate is None else rate
        items = [tuple(item) for item in use.items]
        rows.append((use.grant_id, use.place, times, window_ms, max_open, items))
    return (*mesh, orjson.dumps(rows).decode())
