"""Pruning: which rows of a page are past their policy, and which of them nothing refers to any more."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from vox_mesh.model.retention.policies import ALL_KINDS, RetentionPolicies
from vox_mesh.model.retention.subjects import Subject


class PrunableRow(NamedTuple):
    """A row as a page of a sweep has it."""

    position: int
    """In the order of the sweep."""
    key: str
    kind: str
    born_ms: int
    """When it was written first; later rows are not older, as a rule."""
    ended_ms: int | None
    """When it came to its end; `None`: it has not."""
    is_needed: bool
    """Whether anything else than the referrers needs it."""
    referrers: tuple[str, ...] = ()
    """The keys of rows of the same subject that refer to it."""


class Bounds(NamedTuple):
    """What is past its policy at a moment."""

    subject: Subject
    policies: RetentionPolicies
    now_ms: int
    last_positions: Mapping[str, int]
    """By kind: rows up to this position are too many."""

    def is_due(self, row: PrunableRow) -> bool:
        """Return whether a row is past its policy."""
        if row.ended_ms is None:
            return False
        policy = self.policies.of(self.subject, row.kind)
        is_old = policy.age_ms is not None and row.ended_ms <= self.now_ms - policy.age_ms
        return is_old or row.position <= self.last_positions.get(policy.kind, 0)

    @property
    def cutoff_ms(self) -> int:
        """Return the time of ends after which no row is past its age."""
        shortest_ms = self.policies.shortest_age_ms(self.subject)
        return 0 if shortest_ms is None else self.now_ms - shortest_ms

    @property
    def last_position(self) -> int:
        """Return the position after which no row is one too many."""
        return max(self.last_positions.values(), default=0)

    def is_beyond(self, row: PrunableRow) -> bool:
        """Return whether neither this row nor a later one is past its policy, as a rule."""
        return row.born_ms > self.cutoff_ms and row.position > self.last_position


def removable(due: Iterable[PrunableRow], gone: Collection[str] = ()) -> list[PrunableRow]:
    """Return the rows that nothing needs, each after the rows that refer to it.

    A row that only rows among these, or ones that are `gone`, refer to is removable with them.
    """
    waiting = {row.key: row for row in due if not row.is_needed}
    referrers = {key: {each for each in row.referrers if each not in gone} for key, row in waiting.items()}
    referred: dict[str, list[str]] = {}
    for key, names in referrers.items():
        for name in names:
            referred.setdefault(name, []).append(key)
    free = [key for key, names in referrers.items() if not names]
    for key in free:  # grows by the rows that become free
        for each in referred.get(key, ()):
            referrers[each].discard(key)
            if not referrers[each]:
                free.append(each)
    return [waiting[key] for key in free]


def batches(rows: Sequence[PrunableRow], size: int) -> Iterable[Sequence[PrunableRow]]:
    """Return the rows in parts of this size, in order."""
    return (rows[start : start + size] for start in range(0, len(rows), size))


def group_of(policies: RetentionPolicies, subject: Subject, kind: str) -> str:
    """Return the kind whose number of rows counts for a kind."""
    return kind if kind in policies.own_kinds(subject) else ALL_KINDS
