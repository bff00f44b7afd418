"""The plan of tempos, and the frames of its beats.

Entries of the plan are announced ahead, so that every node has them in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, NamedTuple, Self

from vox_mesh.errors import BadValue
from vox_mesh.model.documents.documents import is_time, short
from vox_mesh.model.locks.records import iso_of, milliseconds_at
from vox_mesh.model.rhythm.policy import TempoPolicy, policy_hash
from vox_mesh.model.rhythm.tempo import Beat, BeatStamp, Tempo, Timeline, window_id

LEAD_BARS: Final = 2
"""How many bars ahead a tempo is announced at least: each node reads the plan once per bar."""

MIN_LEAD_MS: Final = 5_000
"""The minimum lead, however short bars are: replicas may be behind."""


@dataclass(frozen=True)
class PlanEntry:
    """A policy with its current tempo, and the announcement's origin and time."""

    policy: TempoPolicy
    tempo: Tempo
    first_bar: int = 0
    """The number of bars before its anchor, counted from the first tempo's."""
    reason: str = ""
    op_id: str = ""
    hlc: str = ""
    announced_ms: int = 0

    @classmethod
    def of(cls, policy: TempoPolicy) -> Self:
        """Return the entry of a policy that was not announced: it is in force from the beginning."""
        return cls(policy, Tempo(policy.initial_bpm, policy.bar_len_beats))

    @cached_property
    def policy_hash(self) -> str:
        """Equal for all nodes that follow the same policy at the same tempo."""
        return policy_hash(self.policy, self.tempo)

    @property
    def is_announced(self) -> bool:
        """Whether every node can read it in the database."""
        return bool(self.op_id)

    @property
    def anchor_ms(self) -> int:
        """Since when the entry is in force."""
        return self.tempo.anchor_ms

    def leads_to(self, other: PlanEntry) -> bool:
        """Return whether the other entry begins on a downbeat of this one."""
        return self.tempo.beat_at(other.anchor_ms).window_ms == other.anchor_ms


class Plan:
    """Entries in order. Of two with one anchor, the one with the later hybrid timestamp is in force.

    `first` was in force before all of them, unless the earliest does not follow from it: then its predecessor
    is unknown. Of the others, an entry not anchored on a downbeat of its predecessor is dropped.
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
        """The last announced entry: the next one is anchored on it."""
        return self.entries[-1]

    def at(self, at_ms: int) -> PlanEntry:
        """Return the entry in force at a time."""
        for entry in reversed(self.entries):
            if entry.anchor_ms <= at_ms:
                return entry
        return self.entries[0]

    def entries_from(self, at_ms: int) -> Sequence[PlanEntry]:
        """Return the entry in force at a time, and the following ones."""
        return self.entries[self.entries.index(self.at(at_ms)) :]

    def bar_at(self, at_ms: int) -> int:
        """Return the number of bars before the one that contains a time, from the first tempo on."""
        entry = self.at(at_ms)
        return entry.first_bar + (at_ms - entry.anchor_ms) // entry.tempo.bar_ms

    def downbeat_of(self, bar: int) -> int:
        """Return when the bar with this number begins."""
        earlier = (entry for entry in reversed(self.entries) if entry.first_bar <= bar)
        entry = next(earlier, self.entries[0])
        return entry.anchor_ms + (bar - entry.first_bar) * entry.tempo.bar_ms

    def stamp_at(self, at_ms: int) -> BeatStamp:
        """Return the bar and beat of a time."""
        beat = self.timeline.beat_at(at_ms)
        return BeatStamp(window_id(self.at(at_ms).policy.cluster_id, beat.window_ms), beat.index)

    def announced_stamp_at(self, at_ms: int) -> BeatStamp | None:
        """Return the bar and beat of a time, or `None` if the tempo in force was not announced."""
        return self.stamp_at(at_ms) if self.at(at_ms).is_announced else None

    def lead_ms(self, now_ms: int) -> int:
        """Return how long before its anchor a tempo must be announced."""
        return max(MIN_LEAD_MS, LEAD_BARS * max(self.head.tempo.bar_ms, self.at(now_ms).tempo.bar_ms))

    def next_anchor_ms(self, now_ms: int, margin_ms: int = 0, after_ms: int = 0) -> int:
        """Return the first downbeat on which a tempo announced within the margin can begin."""
        head = self.head
        earliest_ms = now_ms + margin_ms + self.lead_ms(now_ms)
        soonest_ms = max(earliest_ms, head.anchor_ms + head.tempo.bar_ms, after_ms)
        beat = head.tempo.beat_at(soonest_ms)
        return beat.window_ms if beat.window_ms == soonest_ms else beat.window_ends_ms

    def followed_by(self, policy: TempoPolicy, bpm: float, anchor_ms: int, reason: str) -> PlanEntry:
        """Return the entry of another policy from that downbeat on."""
        tempo = Tempo(bpm, policy.bar_len_beats, anchor_ms)
        bars = self.head.first_bar + (anchor_ms - self.head.anchor_ms) // self.head.tempo.bar_ms
        return PlanEntry(policy, tempo, bars, reason)


def median(entries: Sequence[PlanEntry]) -> PlanEntry:
    """Return the policy with the median tempo. All nodes with the same input choose the same one."""
    ordered = sorted(entries, key=lambda each: (each.tempo.bpm, each.policy_hash))
    return ordered[(len(ordered) - 1) // 2]


# --- beats ---------------------------------------------------------------------------------------


class TempoSource(StrEnum):
    """The origin of a frame's tempo."""

    POLICY = "policy"
    MEDIAN = "median"
    """The median policy: nodes follow different policies and there is no leader."""


class Stamp(NamedTuple):
    """The bar, beat and hybrid timestamp of an event."""

    window: str
    beat_index: int
    hlc: str


@dataclass(frozen=True)
class BeatFrame:
    """One beat. `deadline_at` is its end."""

    cluster_id: str
    tempo_bpm: float
    beat_ms: int
    bar_len_beats: int
    beat_index: int
    beat_epoch: str
    downbeat: bool
    phase: str
    hlc: str
    policy_hash: str
    deadline_at: str
    source: str = TempoSource.POLICY

    @classmethod
    def of(cls, beat: Beat, entry: PlanEntry, hlc: str, source: TempoSource = TempoSource.POLICY) -> Self:
        """Return the frame of a beat under a policy."""
        return cls(
            cluster_id=entry.policy.cluster_id,
            tempo_bpm=entry.tempo.bpm,
            beat_ms=beat.beat_ms,
            bar_len_beats=beat.bar_len,
            beat_index=beat.index,
            beat_epoch=iso_of(beat.epoch_ms),
            downbeat=beat.is_downbeat,
            phase=entry.policy.phase_at(beat.index),
            hlc=hlc,
            policy_hash=entry.policy_hash,
            deadline_at=iso_of(beat.ends_ms),
            source=source,
        )

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Self:
        """Return the frame of a document; the old counters `bar` and `beat` are accepted."""
        values = dict(document)
        if "beat_index" not in values and "beat" in values:
            values["beat_index"] = values["beat"]
            values["downbeat"] = values["beat"] == 1
            if is_time(values.get("deadline_at")) and type(values.get("beat_ms")) is int:
                values["beat_epoch"] = iso_of(milliseconds_at(values["deadline_at"]) - values["beat_ms"])
        for old in ("bar", "beat"):
            values.pop(old, None)
        known = {field.name: field for field in fields(cls)}
        for name in values.keys() - known.keys():
            raise BadValue(f"beat frame has an unknown field: {short(name)}")
        for name in known.keys() - values.keys() - {"source"}:
            raise BadValue(f"beat frame must have the field {name}")
        frame = cls(**values)
        frame._check()
        return frame

    def _check(self) -> None:
        count, time = "an integer of at least 1", "a time"
        for name, is_valid, rule in (
            ("bar_len_beats", type(self.bar_len_beats) is int and self.bar_len_beats >= 1, count),
            ("beat_ms", type(self.beat_ms) is int and self.beat_ms >= 1, count),
            ("tempo_bpm", type(self.tempo_bpm) in (int, float) and self.tempo_bpm > 0, "more than 0"),
            ("beat_epoch", is_time(self.beat_epoch), time),
            ("deadline_at", is_time(self.deadline_at), time),
        ):
            if not is_valid:
                raise BadValue(f"{name} of a beat frame must be {rule}, got {short(getattr(self, name))}")
        if type(self.beat_index) is not int or not 1 <= self.beat_index <= self.bar_len_beats:
            raise BadValue(
                f"beat_index of a beat frame must be an integer from 1 to {self.bar_len_beats}, "
                f"got {short(self.beat_index)}"
            )
        if self.downbeat is not (self.beat_index == 1):
            raise BadValue("downbeat of a beat frame must be true for beat 1 only")

    @property
    def epoch_ms(self) -> int:
        """When the beat began."""
        return milliseconds_at(self.beat_epoch)

    def document(self) -> dict[str, Any]:
        """Return the frame as a JSON object."""
        return asdict(self)
