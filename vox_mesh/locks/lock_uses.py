"""What holding locks needs of a grant, and how it is counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vox_mesh.locks.scripts import LockRequest

if TYPE_CHECKING:
    from vox_mesh.model.grants.capability import Act
    from vox_mesh.model.grants.limits import Use


def holding_acts(keys: Sequence[str]) -> list[Act]:
    """Return the acts for which holding keys needs a grant."""
    from vox_mesh.model.grants.capability import ACQUIRE, Act  # imported late: few agents need grants

    return [Act(ACQUIRE, key) for key in keys]


def lock_uses(request: LockRequest) -> list[Use]:
    """Return how a request is counted: once, with all of its keys."""
    from vox_mesh.model.grants.limits import Item, ItemKind, Use

    item = Item(ItemKind.LOCK, request.item_id)
    return [Use(act, item) for act in holding_acts(request.keys)]
