"""Tempo policies: the tempo of a cluster, the phases of its bars, and how they may adapt."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from itertools import chain, repeat
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    model_validator,
)

from vox_mesh.errors import BadPolicy
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.documents.documents import Path
from vox_mesh.model.documents.validation import build_model, flaw, named, read_model, shown
from vox_mesh.model.rhythm.tempo import FASTEST_BPM, LONGEST_BAR, SLOWEST_BPM, Tempo

PHASES: Final = ("plan", "work", "review")
"""The default phases."""

DEFAULT_BPM: Final = 12.0
DEFAULT_BAR: Final = 8

_DOCUMENT_NAME: Final = "policy"
_WORD: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_STEP: Final = re.compile(r"(\d{1,3}(?:\.\d{1,3})?)_beats?", re.ASCII)

STRICT: Final = ConfigDict(frozen=True, strict=True, extra="forbid", defer_build=True)
"""Written documents are taken literally or rejected."""


def divide_beats(beats: int, shares: Mapping[str, int]) -> dict[str, int]:
    """Return whole beats by name in proportion to the shares, by largest remainders."""
    total = sum(shares.values())
    counts = {name: beats * share // total for name, share in shares.items()}
    left = beats - sum(counts.values())
    remainders = sorted(shares, key=lambda name: -(beats * shares[name] % total))
    return {name: count + (name in remainders[:left]) for name, count in counts.items()}


def _parse_phases(value: Any) -> tuple[str, ...] | tuple[tuple[str, int], ...]:
    """Return names, or pairs of names and beats, in order; a map in canonical JSON would lose the order."""
    if not isinstance(value, Mapping | list | tuple):
        raise flaw(f"must be an array or a map, not {named(value)}")
    if not value:
        raise flaw("must not be empty")
    if not isinstance(value, Mapping) and all(isinstance(each, str) for each in value):
        for place, name in enumerate(value):
            _check_phase(name, name not in value[:place], place)
        return tuple(value)
    pairs: dict[str, int] = {}
    for at, name, beats in _phase_items(value):
        _check_phase(name, name not in pairs, *at)
        if type(beats) is not int or beats < 1:
            raise flaw(f"must be a number of beats, 1 or more, not {shown(beats)}", *at)
        pairs[name] = beats
    return tuple(pairs.items())


def _phase_items(value: Mapping[str, Any] | Sequence[Any]) -> Iterator[tuple[Path, Any, Any]]:
    """Yield the path, name and beats of each phase of a map, or of an array of one-field maps."""
    if isinstance(value, Mapping):
        yield from (((name,), name, beats) for name, beats in value.items())
        return
    for place, each in enumerate(value):
        if not isinstance(each, Mapping) or len(each) != 1:
            raise flaw(f"must be a name, not {named(each)}", place)
        yield from (((place, name), name, beats) for name, beats in each.items())


def _check_phase(name: Any, is_new: bool, *at: str | int) -> None:
    if not isinstance(name, str) or not _WORD.fullmatch(name):
        raise flaw(f"{shown(name)} is no name of a phase", *at)
    if not is_new:
        raise flaw(f"{name} is named twice", *at)


def _phases_document(phases: tuple[str, ...] | tuple[tuple[str, int], ...]) -> list[str | dict[str, int]]:
    return [each if isinstance(each, str) else dict([each]) for each in phases]


def _check_step(value: str) -> str:
    if not (found := _STEP.fullmatch(value)) or not float(found[1]):
        raise flaw(f"{shown(value)} is no number of beats")
    return value


_Bpm = Annotated[float, Field(ge=SLOWEST_BPM, le=FASTEST_BPM)]
_BPM_TEXT: Final = f"beats a minute, a number from 1/60 to {FASTEST_BPM:g}"


class PolicyLimits(BaseModel):
    """The bounds of an adapting tempo."""

    model_config = STRICT

    min_bpm: _Bpm = Field(description=_BPM_TEXT)
    max_bpm: _Bpm = Field(description=_BPM_TEXT)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min_bpm > self.max_bpm:
            raise flaw(f"{self.min_bpm:g} is more than max_bpm, {self.max_bpm:g}", "min_bpm")
        return self


def _default_limits(bpm: float) -> PolicyLimits:
    return PolicyLimits.model_construct(min_bpm=max(SLOWEST_BPM, bpm / 2), max_bpm=min(FASTEST_BPM, bpm * 2))


class Adaptation(BaseModel):
    """Whether the tempo follows the load, and its step limits."""

    model_config = STRICT

    enable: bool = Field(False, description="true or false")
    hysteresis_pct: Annotated[float, Field(ge=0, le=100)] = Field(
        10.0, description="smaller changes, in percent, are ignored; from 0 to 100"
    )
    change_per_minute: Annotated[str, AfterValidator(_check_step)] = Field(
        "1_beat", description="by how much the tempo may change in a minute, such as 1_beat or 2.5_beats"
    )

    phases: bool = Field(
        False, description="true or false: with enable, whether beats may move from one phase to another"
    )

    @property
    def max_step_bpm(self) -> float:
        """The largest change of the tempo per minute, in beats per minute."""
        return float(self.change_per_minute.partition("_")[0])


class Observability(BaseModel):
    """What is reported on each bar."""

    model_config = STRICT

    emit_bar_reports: bool = Field(True, description="true or false")


class Security(BaseModel):
    """The lifetime of window keys."""

    model_config = STRICT

    revoke_after_bars: Annotated[int, Field(ge=0, le=64)] = Field(
        1, description="for how many bars after its own a key is accepted, an integer from 0 to 64"
    )


class TempoPolicy(BaseModel):
    """The policy of a cluster. Without limits, its tempo stays between half and twice the initial one."""

    model_config = STRICT

    cluster_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = Field(
        description="1 to 64 letters, digits, dots, dashes and underscores"
    )
    initial_bpm: _Bpm = Field(description=_BPM_TEXT)
    bar_len_beats: Annotated[int, Field(ge=1, le=LONGEST_BAR)] = Field(
        DEFAULT_BAR, description=f"an integer from 1 to {LONGEST_BAR}"
    )
    phases: Annotated[
        tuple[str, ...] | tuple[tuple[str, int], ...],
        PlainValidator(_parse_phases),
        PlainSerializer(_phases_document),
    ] = Field(
        PHASES,
        description="names such as [plan, work, review], or a map of names to beats that sum to "
        "bar_len_beats; names are words of a-z, 0-9, _ and -",
    )
    limits: PolicyLimits = Field(description="min_bpm and max_bpm")
    adaptation: Adaptation = Field(
        Adaptation.model_construct(),
        description="a map of enable, hysteresis_pct, change_per_minute and phases",
    )
    observability: Observability = Field(
        Observability.model_construct(), description="a map of emit_bar_reports"
    )
    security: Security = Field(Security.model_construct(), description="a map of revoke_after_bars")

    @model_validator(mode="before")
    @classmethod
    def _add_default_limits(cls, fields: Any) -> Any:
        if not isinstance(fields, Mapping) or "limits" in fields:
            return fields
        bpm = fields.get("initial_bpm")
        if not isinstance(bpm, int | float) or not SLOWEST_BPM <= bpm <= FASTEST_BPM:
            bpm = DEFAULT_BPM  # the fault is reported for initial_bpm, not for the limits
        return {**fields, "limits": _default_limits(bpm)}

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        bpm, limits, bar = self.initial_bpm, self.limits, self.bar_len_beats
        if not limits.min_bpm <= bpm <= limits.max_bpm:
            raise flaw(
                f"{bpm:g} is not within limits, {limits.min_bpm:g} to {limits.max_bpm:g}", "initial_bpm"
            )
        if len(self.phases) > bar:
            raise flaw(f"{len(self.phases)} phases need a beat each, and a bar has {bar}", "phases")
        if (total := sum(self.phase_beats.values())) != bar:
            raise flaw(f"they sum to {total} beats, and a bar has {bar}", "phases")
        return self

    @classmethod
    def built_in(cls, cluster_id: str) -> TempoPolicy:
        """Return the policy of a cluster for which none was set.

        It is known to be valid and not validated: every command has one, and few need the checks.
        """
        return cls.model_construct(
            cluster_id=cluster_id, initial_bpm=DEFAULT_BPM, limits=_default_limits(DEFAULT_BPM)
        )

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Self:
        """Return the policy of a stored document, or of fields made in code."""
        return build_model(cls, document, called=_DOCUMENT_NAME, bad=BadPolicy)

    def document(self) -> dict[str, Any]:
        """Return the document to store and hash; defaults are omitted, so a new field changes no hash."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def with_phases(self, beats: Mapping[str, int]) -> Self:
        """Return this policy with other beats of its phases."""
        return self.of_document(
            {**self.document(), "phases": [{name: count} for name, count in beats.items()]}
        )

    @cached_property
    def phase_beats(self) -> dict[str, int]:
        """The beats of a bar by phase, in order; each phase has at least one."""
        shares: dict[str, int] = {}
        for each in self.phases:
            name, beats = (each, 1) if isinstance(each, str) else each
            shares[name] = beats
        if not isinstance(self.phases[0], str):
            return shares
        if self.phases == PHASES:
            shares["work"] = 2
        return divide_beats(self.bar_len_beats, shares)

    @cached_property
    def _phase_by_beat(self) -> tuple[str, ...]:
        return tuple(chain.from_iterable(repeat(name, beats) for name, beats in self.phase_beats.items()))

    def phase_at(self, index: int) -> str:
        """Return the phase of a beat by its index in the bar, from 1."""
        return self._phase_by_beat[(index - 1) % self.bar_len_beats]


def parse_policy(text: str | bytes, name: str = _DOCUMENT_NAME) -> TempoPolicy:
    """Return the policy of a YAML or JSON text. Raises `BadPolicy` with all faults, by line."""
    return read_model(TempoPolicy, text, name, called=_DOCUMENT_NAME, bad=BadPolicy)


def policy_hash(policy: TempoPolicy, tempo: Tempo) -> str:
    """Return the hash by which nodes compare the policy and tempo they follow."""
    document = {
        "policy": policy.document(),
        "tempo_bpm": tempo.bpm,
        "bar_len_beats": tempo.bar_len,
        "anchor_ms": tempo.anchor_ms,
    }
    return f"sha256:{sha256(canonical(document).encode()).hexdigest()}"
