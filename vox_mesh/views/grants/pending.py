"""Approvals that wait for a decision, for screens that read them again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vox_mesh.model.grants.approval import ApprovalRequest
from vox_mesh.runtime.services import MeshServices

_MAX_VERIFIED: Final = 20
"""How many new approvals are read at a time: each is a request of its own."""


class PendingRequests:
    """Reads what was asked, and verifies it, once for each approval."""

    def __init__(self, mesh: MeshServices) -> None:
        self._mesh = mesh
        self._known: dict[str, ApprovalRequest | None] = {}

    async def of(self, approval_ids: Sequence[str]) -> list[ApprovalRequest]:
        """Return what these approvals ask for, some of the new ones at a time; others are forgotten."""
        known = {each: self._known[each] for each in approval_ids if each in self._known}
        for each in [each for each in approval_ids if each not in known][:_MAX_VERIFIED]:
            known[each] = await self._mesh.approvals.request(each)
        self._known = known
        found = (known.get(each) for each in approval_ids)
        return [each for each in found if each is not None]
