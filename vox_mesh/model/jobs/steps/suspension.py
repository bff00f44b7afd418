"""Suspension: what a job waits for without a worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Self

from vox_mesh.model.jobs.question import NEEDS_INPUT, Question
from vox_mesh.model.messages.records import checked_receiver, checked_thread, checked_word

SLEEPS: Final = "it sleeps"
"""The reason of a suspended job that waits for a time; the index of suspended jobs has it, too."""

WAKE: Final = "WakeJob"
"""The op that wakes a job whose wait is over: the job has its id as a predecessor."""


WAKE_EARLY: Final = "WakeJobEarly"
"""The op by which what a suspended job waits for is over before its time."""


class AwaitedMessage(NamedTuple):
    """Which message a step waits for: any that has what is given."""

    thread: str | None = None
    msg_type: str | None = None
    receiver: str | None = None
    after_id: int = 0
    """Messages up to this position were looked at, and are not believed."""

    @classmethod
    def of(cls, thread: str | None, msg_type: str | None, receiver: str) -> Self:
        """Return what is waited for: in a thread, or else to a receiver. Raises `BadValue`."""
        return cls(
            None if thread is None else checked_thread(thread),
            None if msg_type is None else checked_word("msg_type", msg_type),
            checked_receiver(receiver) if receiver else None,
        )


class WaitRow(NamedTuple):
    """One wait of a job that an op of its own wakes, in the order of the columns."""

    until_ms: int | None = None
    awaited_job: str | None = None
    thread: str | None = None
    msg_type: str | None = None
    receiver: str | None = None
    after_id: int = 0


class Wake(NamedTuple):
    """The op that wakes a suspended job, and the waits of which one must be over."""

    op_id: str
    rows: Sequence[WaitRow]


class Wait(NamedTuple):
    """One thing that a step waits for: a time, the end of a job, an answer or a message."""

    until_ms: int | None = None
    job_id: str | None = None
    question: Question | None = None
    message: AwaitedMessage | None = None
    deadline_ms: int | None = None
    """When the step fails if it has not come."""


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
    def deadline_ms(self) -> int | None:
        """Return the earliest deadline, or `None`."""
        return min((wait.deadline_ms for wait in self.waits if wait.deadline_ms is not None), default=None)

    @property
    def messages(self) -> list[AwaitedMessage]:
        """Return the messages that are waited for."""
        return [wait.message for wait in self.waits if wait.message is not None]

    @property
    def wake_rows(self) -> list[WaitRow]:
        """Return the waits of which the first that is over wakes the job; none if it waits for all of them.

        A deadline or a message needs such rows. A question is waited for alone: the op that answers it wakes
        the job, too.
        """
        deadline_ms, messages = self.deadline_ms, self.messages
        deadline = [] if deadline_ms is None else [WaitRow(deadline_ms)]
        if self.question is not None or not (deadline or messages):
            return deadline
        times = [] if self.until_ms is None else [WaitRow(self.until_ms)]
        jobs = [WaitRow(awaited_job=job_id) for job_id in self.job_ids]
        return [*deadline, *times, *jobs, *(WaitRow(None, None, *message) for message in messages)]

    @property
    def reason(self) -> str:
        """Return what is waited for, in one line."""
        if self.question is not None:
            return NEEDS_INPUT
        if (count := len(self.job_ids)) > 0:
            return "it waits for a job" if count == 1 else f"it waits for {count} jobs"
        return "it waits for a message" if self.messages else SLEEPS


def suspension_in(error: BaseException) -> Suspended | None:
    """Return the suspension that an exception is, or a group of nothing else; otherwise `None`."""
    if isinstance(error, Suspended):
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    inner = [suspension_in(each) for each in error.exceptions]
    found = [each for each in inner if each is not None]
    return Suspended.merged(found) if len(found) == len(inner) else None
