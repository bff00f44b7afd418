"""Rollbacks of the store: writes acknowledged in a lost window may be gone, and that is not a fault.

A history notes each rollback as `store.went_back`. The time between two rollbacks is an era: within an era,
every promise holds as if there were no others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from proof.history import Event, History, Operation, Step

NOTE: Final = "store.went_back"

_STIRS_S: Final = 1.0
"""A node that was paused may note earlier answers within this time after it resumes."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One rollback, in the times of the history."""

    kept_until: float
    """Writes acknowledged before this are in the restored copy."""
    lost_at: float
    """When the store stopped serving its state from before the rollback."""
    back_at: float
    """When it began to serve the restored copy."""


class Losses:
    """All rollbacks of a history, in order."""

    def __init__(self, history: History) -> None:
        notes = history.notes(NOTE)
        self.all: Final = tuple(
            Loss(note.data["kept_until"], note.data["lost_at"], note.data["back_at"]) for note in notes
        )
        self._pauses = _pauses(history) if self.all else {}

    def __bool__(self) -> bool:
        return bool(self.all)

    def lie_between(self, first: Event, second: Event) -> bool:
        """Return whether a rollback may have lost what the first event relied on."""
        return any(first.at < loss.back_at and second.at > loss.kept_until for loss in self.all)

    def may_have_lost(self, operation: Operation, *, is_spooled: bool | None = None) -> bool:
        """Return whether the effect of an operation may be lost: it may have fallen into a lost window.

        A spooled write is applied later, at any time until the rollback. The operation's result says whether
        it was spooled, unless `is_spooled` does so for a part of it.
        """
        if is_spooled is None:
            is_spooled = bool(operation.result.get("spooled"))
        return any(
            operation.began < self._until(loss, operation.who)
            and (is_spooled or operation.ended > loss.kept_until)
            for loss in self.all
        )

    def is_outcome_unknown(self, operation: Operation) -> bool:
        """Return whether an operation may have had an effect that its caller does not know of.

        An operation in progress at a rollback can have been applied, lost, and then rejected.
        """
        if operation.step is Step.UNKNOWN:
            return True
        return operation.step is Step.NO and any(
            operation.began < loss.lost_at < operation.ended for loss in self.all
        )

    def covers(self, at: float, who: str = "") -> bool:
        """Return whether a node's note of this moment may be about lost state."""
        return any(loss.kept_until < at < self._until(loss, who) for loss in self.all)

    def touches(self, since: float, until: float) -> bool:
        """Return whether a rollback, or a lost window, overlaps this time."""
        return any(loss.kept_until < until and since < loss.back_at for loss in self.all)

    def may_forget(self, first: float, second: float, who: str = "") -> bool:
        """Return whether an effect of the first moment may have been lost by the second."""
        return any(
            loss.kept_until < first < self._until(loss, who) and loss.lost_at < second for loss in self.all
        )

    # --- eras ------------------------------------------------------------------------------------

    @property
    def eras(self) -> range:
        """The numbers of all eras."""
        return range(len(self.all) + 1)

    def era_of(self, began: float, ended: float) -> int | None:
        """Return the era that contains this span, or `None` if it reaches into another."""
        first, last = self.span(began, ended)
        return first if first == last else None

    def span(self, began: float, ended: float) -> tuple[int, int]:
        """Return the first and the last era of this span."""
        first = sum(loss.back_at <= began for loss in self.all)
        return first, max(first, sum(loss.lost_at < ended for loss in self.all))

    def bounds(self, era: int) -> tuple[float, float]:
        """Return when an era began and ended."""
        began = self.all[era - 1].back_at if era else float("-inf")
        return began, self.all[era].lost_at if era < len(self.all) else float("inf")

    def _until(self, loss: Loss, who: str) -> float:
        """Return until when a node may note answers from before a rollback."""
        until = loss.back_at
        for stopped, resumed in self._pauses.get(who, ()):
            if stopped <= until <= resumed:
                until = resumed + _STIRS_S
        return until


def _pauses(history: History) -> dict[str, list[tuple[float, float]]]:
    pauses: dict[str, list[tuple[float, float]]] = defaultdict(list)
    open_: dict[str, float] = {}
    for event in sorted((*history.notes("paused"), *history.notes("resumed")), key=lambda each: each.at):
        node = event.data["player"]
        if event.what == "paused":
            open_.setdefault(node, event.at)
        elif node in open_:
            pauses[node].append((open_.pop(node), event.at))
    return pauses


def lost_ms(history: History, losses: Losses) -> Iterator[tuple[float, float]]:
    """Return the lost windows by the database's clock, as far as the end of the history shows it."""
    for clock in history.notes("final.clock"):
        offset_ms = clock.data["now_ms"] - clock.at * 1_000
        yield from (
            (loss.kept_until * 1_000 + offset_ms, loss.back_at * 1_000 + offset_ms) for loss in losses.all
        )
