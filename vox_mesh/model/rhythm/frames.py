"""Beat frames, which a node sends to its subscribers at each beat, and stamps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, NamedTuple, Self

from vox_mesh.errors import BadValue
from vox_mesh.model.documents.json_shapes import is_time, short
from vox_mesh.model.locks.records import iso_of, milliseconds_at
from vox_mesh.model.rhythm.plan import PlanEntry
from vox_mesh.model.rhythm.tempo import Beat


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


@dataclass(frozen=True, slots=True)
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
            raise BadValue(f"a beat frame has no {short(name)}")
        for name in known.keys() - values.keys() - {"source"}:
            raise BadValue(f"the beat frame has no {name}")
        frame = cls(**values)
        frame._check()
        return frame

    def _check(self) -> None:
        for name, is_right in (
            ("bar_len_beats", type(self.bar_len_beats) is int and self.bar_len_beats >= 1),
            ("beat_ms", type(self.beat_ms) is int and self.beat_ms >= 1),
            ("tempo_bpm", type(self.tempo_bpm) in (int, float) and self.tempo_bpm > 0),
            ("beat_epoch", is_time(self.beat_epoch)),
            ("deadline_at", is_time(self.deadline_at)),
        ):
            if not is_right:
                raise BadValue(f"{name} of the beat frame is {short(getattr(self, name))}")
        if type(self.beat_index) is not int or not 1 <= self.beat_index <= self.bar_len_beats:
            raise BadValue(
                f"beat_index of the beat frame is {short(self.beat_index)}", hint=f"1 to {self.bar_len_beats}"
            )
        if self.downbeat is not (self.beat_index == 1):
            raise BadValue("the beat frame says of the wrong beat that it is the downbeat")

    @property
    def epoch_ms(self) -> int:
        """When the beat began."""
        return milliseconds_at(self.beat_epoch)

    def document(self) -> dict[str, Any]:
        """Return the frame as a JSON object."""
        return asdict(self)
