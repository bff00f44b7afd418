"""Rollbacks of the store: what was acknowledged in a lost window may be gone, and nobody is to blame.

A history tells each with a note `store.went_back`. Between two of them lies an era: within one, every promise
holds as if there were no others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from proof.history import History, Operation, Step

NOTE: Final = "store.went_back"

_STIRS_S: Final = 1.0
"""A player that was stopped notes what it had been answered within this time after it goes on."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One rollback, in the times of the history."""

    kept_until: float
    """What was acknowledged before this is in the restored copy."""
    lost_at: float
    """When the store stopped serving what it held then."""
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

    def may_have_lost(self, operation: Operation, *, is_spooled: bool | None = None) -> bool:
        """Whether the effect of a deed may be gone: it fell, or may have fallen, into a lost window.

        What was kept in a spool is written later, and may have been at any time until the rollback. The
        deed's answer says whether it was, unless `is_spooled` does so for a part of it.
        """
        if is_spooled is None:
            is_spooled = bool(operation.result.get("spooled"))
        return any(
            operation.began < self._until(loss, operation.who)
            and (is_spooled or operation.ended > loss.kept_until)
            for loss in self.all
        )

    def is_outcome_unknown(self, operation: Operation) -> bool:
        """Whether a deed may have had an effect, for a while, of which its caller was told nothing.

        What was under way at a rollback can have been applied, lost, and then refused.
        """
        if operation.step is Step.UNKNOWN:
            return True
        return operation.step is Step.NO and any(
            operation.began < loss.lost_at < operation.ended for loss in self.all
        )

    def covers(self, at: float, who: str = "") -> bool:
        """Whether what a player noted at a moment may be about something that is gone."""
        return any(loss.kept_until < at < self._until(loss, who) for loss in self.all)

    def touches(self, since: float, until: float) -> bool:
        """Whether there was a rollback, or a lost window, in this time."""
        return any(loss.kept_until < until and since < loss.back_at for loss in self.all)

    def may_forget(self, first: float, second: float, who: str = "") -> bool:
        """Whether what was done at the first moment may have been gone at the second."""
        return any(
            loss.kept_until < first < self._until(loss, who) and loss.lost_at < second for loss in self.all
        )

    # --- eras ------------------------------------------------------------------------------------

    @property
    def eras(self) -> range:
        """The numbers of all eras."""
        return range(len(self.all) + 1)

    def era_of(self, began: float, ended: float) -> int | None:
        """The era in which all of this lay; none, if it reached into another."""
        first, last = self.span(began, ended)
        return first if first == last else None

    def span(self, began: float, ended: float) -> tuple[int, int]:
        """The first and the last era that this reached into."""
        first = sum(loss.back_at <= began for loss in self.all)
        return first, max(first, sum(loss.lost_at < ended for loss in self.all))

    def bounds(self, era: int) -> tuple[float, float]:
        """When an era began, and when it ended."""
        began = self.all[era - 1].back_at if era else float("-inf")
        return began, self.all[era].lost_at if era < len(self.all) else float("inf")

    def _until(self, loss: Loss, who: str) -> float:
        """Until when a player may note what it was told before a rollback."""
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
    """The lost windows by the database's clock, as far as the end of the history tells that."""
    for clock in history.notes("final.clock"):
        offset_ms = clock.data["now_ms"] - clock.at * 1_000
        yield from (
            (loss.kept_until * 1_000 + offset_ms, loss.back_at * 1_000 + offset_ms) for loss in losses.all
        )
