"""Bindings: what a job that is bound to the rhythm waits for, in the form that is stored with it."""

from __future__ import annotations

from typing import Final, NamedTuple

AT_DOWNBEAT: Final = "downbeat"
"""The binding of a job that may be claimed from the first downbeat on since it was ready."""

WITH_BAR: Final = "phrase"
"""The binding of a job whose phrase begins with a bar: it may be claimed in the first phase of a bar."""

_DURING: Final = "during:"


def during(phase: str) -> str:
    """Return the binding of a job that may be claimed only while a phase lasts."""
    return _DURING + phase


def phase_in(binding: str | None) -> str | None:
    """Return the phase that a binding names, if it names one."""
    if binding is None or not binding.startswith(_DURING):
        return None
    return binding.removeprefix(_DURING)


class Opening(NamedTuple):
    """The time during which a binding is open."""

    begins_ms: int
    ends_ms: int
    ready_by_ms: int
    """A job that became ready later waits for the next opening."""


class Openings(NamedTuple):
    """Which bindings are open at a time, and when the next opening begins."""

    open: dict[str, Opening]
    next_ms: int | None

    @property
    def latest(self) -> list[tuple[str, int]]:
        """The open bindings, and for each until when a job must have become ready."""
        return [(binding, opening.ready_by_ms) for binding, opening in self.open.items()]


NO_BINDINGS: Final = Openings({}, None)
