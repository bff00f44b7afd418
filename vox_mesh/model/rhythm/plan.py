"""The plan: which policy holds when. All of it is announced ahead, so that every node has it in time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self

from vox_mesh.model.rhythm.policy import TempoPolicy, policy_hash
from vox_mesh.model.rhythm.tempo import Tempo, Timeline

LEAD_BARS: Final = 2
"""A tempo is announced at least so many bars ahead: each node looks for one in every bar."""

LEAST_LEAD_MS: Final = 5_000
"""And, however short bars are, so long ahead: copies of the database may be behind."""


@dataclass(frozen=True)
class PlanEntry:
    """A policy, the tempo that it has come to, and who said so when."""

    policy: TempoPolicy
    tempo: Tempo
    first_bar: int = 0
    """How many bars there were before its anchor, counted from the first tempo's."""
    reason: str = ""
    op_id: str = ""
    hlc: str = ""
    announced_ms: int = 0

    @classmethod
    def of(cls, policy: TempoPolicy) -> Self:
        """A policy that nobody has announced: it holds from the beginning of time."""
        return cls(policy, Tempo(policy.initial_bpm, policy.bar_len_beats))

    @cached_property
    def policy_hash(self) -> str:
        """The same for all who go by the same policy, at the same tempo."""
        return policy_hash(self.policy, self.tempo)

    @property
    def anchor_ms(self) -> int:
        """Since when it holds."""
        return self.tempo.anchor_ms

    def leads_to(self, other: PlanEntry) -> bool:
        """Whether the other begins on a downbeat of this one."""
        return self.tempo.beat_at(other.anchor_ms).window_ms == other.anchor_ms


class Plan:
    """Entries in their order. Of two with one anchor the later by its hybrid time holds.

    `first` is what held before all of them, unless the earliest does not follow from it: then nobody knows
    any more what did. Of the others, one that is anchored on no downbeat of the one before is left out.
    """

    def __init__(self, first: PlanEntry, entries: Iterable[PlanEntry] = ()) -> None:
        best = {entry.anchor_ms: entry for entry in sorted(entries, key=lambda each: each.hlc)}
        ordered = [best[anchor_ms] for anchor_ms in sorted(best)]
        if not ordered or (first.anchor_ms < ordered[0].anchor_ms and first.leads_to(ordered[0])):
            ordered.insert(0, first)
        fitting = ordered[:1]
        for entry in ordered[1:]:
            if fitting[-1].leads_to(entry):
                fitting.append(entry)
        self.entries: Final[Sequence[PlanEntry]] = tuple(fitting)
        self.timeline: Final = Timeline(entry.tempo for entry in fitting)

    @property
    def head(self) -> PlanEntry:
        """The last that was announced: what comes next is anchored on it."""
        return self.entries[-1]

    def at(self, at_ms: int) -> PlanEntry:
        """What holds at a moment."""
        for entry in reversed(self.entries):
            if entry.anchor_ms <= at_ms:
                return entry
        return self.entries[0]

    def lead_ms(self, now_ms: int) -> int:
        """How long before its anchor another tempo must be announced."""
        return max(LEAST_LEAD_MS, LEAD_BARS * max(self.head.tempo.bar_ms, self.at(now_ms).tempo.bar_ms))

    def next_anchor_ms(self, now_ms: int, margin_ms: int = 0, after_ms: int = 0) -> int:
        """The first downbeat on which another tempo can begin, if it is announced within the margin."""
        head = self.head
        earliest_ms = now_ms + margin_ms + self.lead_ms(now_ms)
        soonest_ms = max(earliest_ms, head.anchor_ms + head.tempo.bar_ms, after_ms)
        beat = head.tempo.beat_at(soonest_ms)
        return beat.window_ms if beat.window_ms == soonest_ms else beat.window_ends_ms

    def followed_by(self, policy: TempoPolicy, bpm: float, anchor_ms: int, reason: str) -> PlanEntry:
        """The entry of another policy, from that downbeat on."""
        tempo = Tempo(bpm, policy.bar_len_beats, anchor_ms)
        bars = self.head.first_bar + (anchor_ms - self.head.anchor_ms) // self.head.tempo.bar_ms
        return PlanEntry(policy, tempo, bars, reason)


def median(entries: Sequence[PlanEntry]) -> PlanEntry:
    """Of policies that differ, the one in the middle by its tempo: whoever sees the same takes the same."""
    ordered = sorted(entries, key=lambda each: (each.tempo.bpm, each.policy_hash))
    return ordered[(len(ordered) - 1) // 2]
