"""Views of retention: policies, and how far pruning is."""

from __future__ import annotations

from dataclasses import dataclass

from vox_mesh.model.base.durations import short_duration
from vox_mesh.model.retention.policies import Policy
from vox_mesh.model.retention.subjects import RULES
from vox_mesh.runtime.retention.pruner import Swept
from vox_mesh.runtime.retention.retention import WHOLE
from vox_mesh.runtime.retention.sizes import TableSize
from vox_mesh.runtime.services import MeshServices


@dataclass(frozen=True)
class RetentionPolicyView:
    """How long rows of a subject, or of one kind of it, are kept, and how far pruning is."""

    subject: str
    kind: str | None
    age: str | None
    max_rows: int | None
    max_bytes: int | None
    is_default: bool
    what: str
    pruned: int | None
    needed: int | None


@dataclass(frozen=True)
class RetentionView:
    """All policies, and when a pass was last complete."""

    policies: list[RetentionPolicyView]
    attempted_ms: int | None
    completed_ms: int | None


@dataclass(frozen=True)
class PrunedView:
    """What a pass has pruned of a subject, or would prune, and what something still needs."""

    subject: str
    pruned: int
    needed: int

    @classmethod
    def of(cls, swept: Swept) -> PrunedView:
        """Return the view of a sweep."""
        return cls(swept.subject, swept.pruned, swept.needed)


@dataclass(frozen=True)
class TableSizeView:
    """The size of a table, how much it grows in a day, and its size in 30 days."""

    table: str
    rows: int
    bytes: int | None
    rows_a_day: int | None
    bytes_a_day: int | None
    forecast_bytes: int | None

    @classmethod
    def of(cls, size: TableSize) -> TableSizeView:
        """Return the view of a size."""
        rows_a_day = None if size.rows_a_day is None else round(size.rows_a_day)
        bytes_a_day = None if size.bytes_a_day is None else round(size.bytes_a_day)
        return cls(size.table, size.rows, size.bytes, rows_a_day, bytes_a_day, size.forecast_bytes)


async def retention(mesh: MeshServices) -> RetentionView:
    """Return the policies in force, and how far pruning is."""
    policies, progress = await mesh.retention.policies(), await mesh.retention.progress()
    views = []
    for policy in policies.listed():
        found = None if policy.kind else progress.get(policy.subject)
        views.append(policy_view(policy, found and found.pruned, found and found.needed))
    whole = progress.get(WHOLE)
    return RetentionView(views, whole and whole.attempted_ms, whole and whole.completed_ms)


def policy_view(policy: Policy, pruned: int | None = None, needed: int | None = None) -> RetentionPolicyView:
    """Return the view of a policy."""
    return RetentionPolicyView(
        policy.subject.value,
        policy.kind or None,
        None if policy.age_ms is None else short_duration(policy.age_ms),
        policy.max_rows,
        policy.max_bytes,
        policy.is_default,
        RULES[policy.subject].what,
        pruned,
        needed,
    )
