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


@dataclass(frozen=True)
class Entry:
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


class Plan:
    """Entries in their order. Of two with one anchor the later by its hybrid time holds."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        best: dict[int, Entry] = {}
        for entry in sorted(entries, key=lambda each: each.hlc):
            best[entry.anchor_ms] = entry
        first, *others = (best[anchor_ms] for anchor_ms in sorted(best))
        fitting = [first]
        for entry in others:
            if fitting[-1].tempo.beat_at(entry.anchor_ms).window_ms == entry.anchor_ms:
                fitting.append(entry)
        self.entries: Final[Sequence[Entry]] = tuple(fitting)
        self.timeline: Final = Timeline(entry.tempo for entry in fitting)

    @property
    def head(self) -> Entry:
        """The last that was announced: what comes next is anchored on it."""
        return self.entries[-1]

    def at(self, at_ms: int) -> Entry:
        """What holds at a moment."""
        for entry in reversed(self.entries):
            if entry.anchor_ms <= at_ms:
                return entry
        return self.entries[0]

    def with_entries(self, entries: Iterable[Entry]) -> Plan:
        """This one, and these."""
        return Plan((*self.entries, *entries))

    def next_anchor_ms(self, now_ms: int, margin_ms: int = 0) -> int:
        """The first downbeat on which another tempo can begin, if it is announced within the margin."""
        head = self.head
        lead_ms = LEAD_BARS * max(head.tempo.bar_ms, self.at(now_ms).tempo.bar_ms)
        soonest_ms = max(now_ms + margin_ms + lead_ms, head.anchor_ms + head.tempo.bar_ms)
        beat = head.tempo.beat_at(soonest_ms)
        return beat.window_ms if beat.window_ms == soonest_ms else beat.window_ends_ms

    def followed_by(self, policy: TempoPolicy, bpm: float, anchor_ms: int, reason: str) -> Entry:
        """The entry of another policy, from that downbeat on."""
        tempo = Tempo(bpm, policy.bar_len_beats, anchor_ms)
        bars = self.head.first_bar + (anchor_ms - self.head.anchor_ms) // self.head.tempo.bar_ms
        return Entry(policy, tempo, bars, reason)


def median(entries: Sequence[Entry]) -> Entry:
    """Of policies that differ, the one in the middle by its tempo: whoever sees the same takes the same."""
    ordered = sorted(entries, key=lambda each: (each.tempo.bpm, each.policy_hash))
    return ordered[(len(ordered) - 1) // 2]
