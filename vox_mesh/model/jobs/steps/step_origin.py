"""Step origin: the stored steps with which a job begins, because it was forked from another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from vox_mesh.model.documents.documents import has_keys, is_count
from vox_mesh.model.jobs.steps.step_row import StepKind, StepRow, StepState, by_place

_FIELD: Final = "fork"


class StepOrigin(NamedTuple):
    """The steps of another job that a job begins with. Its id is a hash of this, too.

    `link` is that of the other job's row `seq`: it covers all rows up to there. Of these, the job takes over
    `rows`, from places before `before`. With `cancels`, it runs the compensations that are among them, and
    nothing else.
    """

    job_id: str
    seq: int
    link: str
    before: int
    rows: int
    cancels: bool = False

    @classmethod
    def of(cls, job_id: str, rows: Sequence[StepRow], before: int, *, cancels: bool = False) -> Self | None:
        """Return the origin that the verified rows of a job are, or `None` if there is none to take over."""
        taken = taken_over(rows, before)
        if not taken:
            return None
        return cls(job_id, len(rows), rows[-1].link, before, len(taken), cancels)

    @classmethod
    def in_core(cls, core: Mapping[str, Any]) -> Self | None:
        """Return the origin that the core of a manifest names, or `None`."""
        for each in core.get("inputs") or ():
            value = each.get(_FIELD) if isinstance(each, Mapping) else None
            if value is not None and _is_origin(value):
                return cls(**value)
        return None

    def added_to(self, inputs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return the inputs of a manifest with this origin, and no other."""
        return [*(each for each in inputs if _FIELD not in each), {_FIELD: self._asdict()}]

    def rows_of(self, rows: Sequence[StepRow]) -> list[StepRow] | None:
        """Return what is taken over of the verified rows of the other job; `None`: they are not the same."""
        if len(rows) < self.seq or rows[self.seq - 1].link != self.link:
            return None
        taken = taken_over(rows[: self.seq], self.before)
        return taken if len(taken) == self.rows else None


def taken_over(rows: Sequence[StepRow], before: int) -> list[StepRow]:
    """Return the last rows of the places before another, by place: what has a result, or was slept."""
    last = by_place(rows)
    return [row for place, row in sorted(last.items()) if place < before and _is_settled(row, max(last))]


def _is_settled(row: StepRow, last_place: int) -> bool:
    if row.state == StepState.WAITING:
        return row.kind == StepKind.SLEEP
    if row.state == StepState.FAILED:  # its handler has caught it if another step came after it
        return row.place < last_place and row.document.get("retry_ms") is None
    return True


def _is_origin(value: Any) -> bool:
    return (
        has_keys(value, StepOrigin._fields)
        and all(type(value[name]) is str for name in ("job_id", "link"))
        and all(is_count(value[name]) for name in ("seq", "before", "rows"))
        and type(value["cancels"]) is bool
    )
