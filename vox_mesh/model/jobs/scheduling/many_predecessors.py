"""Many predecessors: the row of such a job changes only when none of them is awaited any more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

MANY: Final = 256
"""Jobs with up to this many predecessors are counted down one by one."""


class ManyPredecessors:
    """Answers whether a job with many predecessors still waits for other jobs. Ended jobs stay so."""

    def __init__(self, after: Mapping[str, Mapping[str, str]], is_met: Callable[[str, str], bool]) -> None:
        """`after` has by job id its predecessors and the condition of each."""
        self._after = after
        self._is_met = is_met
        self._unmet: dict[str, list[str]] = {}

    def are_had_by(self, job_id: str) -> bool:
        """Return whether a job has many."""
        return len(self._after.get(job_id, ())) > MANY

    def are_awaited_by(self, job_id: str) -> bool:
        """Return whether a job has many, and waits for another job."""
        if not self.are_had_by(job_id):
            return False
        after = self._after[job_id]
        if (unmet := self._unmet.get(job_id)) is None:
            unmet = self._unmet[job_id] = [name for name, awaited in after.items() if awaited != "op"]
        while unmet and self._is_met(unmet[-1], after[unmet[-1]]):
            unmet.pop()
        return bool(unmet)

    def forget(self, job_id: str) -> None:
        """Look at all predecessors of a job the next time."""
        self._unmet.pop(job_id, None)
