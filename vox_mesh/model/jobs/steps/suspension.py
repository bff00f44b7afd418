"""Suspension: what a job waits for without a worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from vox_mesh.model.jobs.question import NEEDS_INPUT, Question


class Wait(NamedTuple):
    """One thing that a step waits for: a time, the end of a job, or an answer."""

    until_ms: int | None = None
    job_id: str | None = None
    question: Question | None = None


class Suspended(BaseException):
    """Raised through a handler whose next step must wait. A handler must not catch it.

    It is no `Exception`, so that `except Exception` in a handler lets it pass.
    """

    def __init__(self, waits: Sequence[Wait]) -> None:
        super().__init__("the job is suspended")
        self.waits = tuple(waits)

    @classmethod
    def merged(cls, several: Iterable[Suspended]) -> Self:
        """Return one suspension that waits for everything that several wait for."""
        return cls([wait for each in several for wait in each.waits])

    @property
    def question(self) -> Question | None:
        """Return the question to ask. Of several, the others are asked afterwards."""
        return next((wait.question for wait in self.waits if wait.question is not None), None)

    @property
    def job_ids(self) -> list[str]:
        """Return the jobs whose ends are waited for."""
        return list(dict.fromkeys(wait.job_id for wait in self.waits if wait.job_id is not None))

    @property
    def until_ms(self) -> int | None:
        """Return the latest time that is waited for, or `None`."""
        return max((wait.until_ms for wait in self.waits if wait.until_ms is not None), default=None)

    @property
    def reason(self) -> str:
        """Return what is waited for, in one line."""
        if self.question is not None:
            return NEEDS_INPUT
        if (count := len(self.job_ids)) > 0:
            return "it waits for a job" if count == 1 else f"it waits for {count} jobs"
        return "it sleeps"


def suspension_in(error: BaseException) -> Suspended | None:
    """Return the suspension that an exception is, or a group of nothing else; otherwise `None`."""
    if isinstance(error, Suspended):
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    inner = [suspension_in(each) for each in error.exceptions]
    found = [each for each in inner if each is not None]
    return Suspended.merged(found) if len(found) == len(inner) else None
