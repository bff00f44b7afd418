"""UCXL addresses with a time suffix: `ucxl://proj:any/*/task/ingest;beats=^^4;phase=work`.

| suffix | when |
| --- | --- |
| `;beats=^^N` | N beats from now |
| `;beats=~~N` | N beats before now |
| `;phase=NAME` | in that phase: see `resolve` |
| `;bar=B#beat=N` | beat N of bar B, where bar 1 begins at the anchor of the first tempo: deprecated |

Each may occur once, in any order, but not both `beats` and `bar`. An address without any refers to now.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from vox_mesh.errors import BadAddress
from vox_mesh.model.rhythm.phases import phase_of
from vox_mesh.model.rhythm.plan import Plan
from vox_mesh.model.rhythm.tempo import Beat

SCHEME: Final = "ucxl://"
MAX_LENGTH: Final = 2_048
MAX_BEATS: Final = 1_000_000
MAX_BAR: Final = 10**12
END_MS: Final = 253_402_300_800_000
"""The first time that can't be written as a date."""

_FUTURE: Final = "^^"
_PAST: Final = "~~"
_SUFFIXES: Final = "allowed are ;beats=^^N, ;beats=~~N, ;phase=NAME and ;bar=B#beat=N, each once"
_BASE: Final = f"an address is {SCHEME} and a path without spaces, ';' and '#'"
_NUMBER: Final = re.compile(r"[0-9]+")
_WORD: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class Beats:
    """`;beats=`: a number of beats from now, or before now."""

    count: int
    is_past: bool = False

    def __str__(self) -> str:
        return f";beats={_PAST if self.is_past else _FUTURE}{self.count}"


@dataclass(frozen=True, slots=True)
class PhaseFilter:
    """`;phase=`: in this phase."""

    name: str

    def __str__(self) -> str:
        return f";phase={self.name}"


@dataclass(frozen=True, slots=True)
class BarBeat:
    """`;bar=…#beat=…`: a bar by its number, and a beat of it. Deprecated: use `;beats=` instead."""

    bar: int
    beat: int

    def __str__(self) -> str:
        return f";bar={self.bar}#beat={self.beat}"


Suffix = Beats | PhaseFilter | BarBeat
_Kind = TypeVar("_Kind", Beats, PhaseFilter, BarBeat)


@dataclass(frozen=True, slots=True)
class Address:
    """An address; its text is the one it was parsed from."""

    base: str
    suffixes: tuple[Suffix, ...] = ()

    def __str__(self) -> str:
        return self.base + "".join(map(str, self.suffixes))

    def suffix(self, kind: type[_Kind]) -> _Kind | None:
        """Return the suffix of a kind, if there is one."""
        return next((each for each in self.suffixes if isinstance(each, kind)), None)

    def offset_of(self, suffix: Suffix) -> int:
        """Return the position of a suffix in the text."""
        return len(self.base) + sum(len(str(each)) for each in self.suffixes[: self.suffixes.index(suffix)])


class Resolved(NamedTuple):
    """The time an address refers to, with its beat and phase."""

    at_ms: int
    beat: Beat
    phase: str


# --- reading --------------------------------------------------------------------------------------


def parse(text: str) -> Address:
    """Parse an address. Raises `BadAddress` with the position of the fault and the allowed forms."""
    return _UcxlParser(text).address()


class _UcxlParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def address(self) -> Address:
        if len(self._text) > MAX_LENGTH:
            raise self._fault("it is too long", f"at most {MAX_LENGTH} characters", at=MAX_LENGTH)
        self._expect(SCHEME, _BASE)
        base = self._base()
        suffixes: list[Suffix] = []
        while self._at < len(self._text):
            at = self._at
            suffix = self._suffix()
            if any(_is_conflicting(suffix, each) for each in suffixes):
                raise self._fault(f"{suffix} is one too many", "one of ;beats= and ;bar=, each once", at=at)
            suffixes.append(suffix)
        return Address(base, tuple(suffixes))

    def _base(self) -> str:
        end = self._text.find(";")
        base = self._text if end < 0 else self._text[:end]
        for at in range(self._at, len(base)):
            if base[at].isspace() or not base[at].isprintable() or base[at] == "#":
                raise self._fault(f"{base[at]!r} can't stand there", _BASE, at=at)
        if len(base) == self._at:
            raise self._fault("there is no path", _BASE)
        self._at = len(base)
        return base

    def _suffix(self) -> Suffix:
        for begin, read in ((";beats=", self._beats), (";phase=", self._phase), (";bar=", self._bar)):
            if self._text.startswith(begin, self._at):
                self._at += len(begin)
                return read()
        raise self._fault("there is no such suffix", _SUFFIXES)

    def _beats(self) -> Beats:
        for mark in (_FUTURE, _PAST):
            if self._text.startswith(mark, self._at):
                self._at += len(mark)
                return Beats(self._number(0, MAX_BEATS), mark == _PAST)
        raise self._fault("it does not say which way", f"{_FUTURE}N is N beats from now, {_PAST}N before")

    def _phase(self) -> PhaseFilter:
        found = _WORD.match(self._text, self._at)
        if found is None:
            raise self._fault("there is no phase", "the name of a phase of the policy, such as work")
        self._at = found.end()
        return PhaseFilter(found[0])

    def _bar(self) -> BarBeat:
        bar = self._number(1, MAX_BAR)
        self._expect("#beat=", "a bar is followed by #beat= and a number")
        return BarBeat(bar, self._number(1, MAX_BEATS))

    def _number(self, minimum: int, maximum: int) -> int:
        allowed = f"a number from {minimum} to {maximum}, without zeros before it"
        found = _NUMBER.match(self._text, self._at)
        if found is None:
            raise self._fault("there is no number", allowed)
        digits = found[0]
        if (digits[0] == "0" and digits != "0") or not minimum <= int(digits) <= maximum:
            raise self._fault("the number can't be used", allowed)
        self._at = found.end()
        return int(digits)

    def _expect(self, word: str, hint: str) -> None:
        for letter in word:
            if not self._text.startswith(letter, self._at):
                raise self._fault(f"{word} is missing", hint)
            self._at += 1

    def _fault(self, message: str, hint: str, at: int | None = None) -> BadAddress:
        return BadAddress(message, position=self._at if at is None else at, hint=hint)


def _is_conflicting(suffix: Suffix, other: Suffix) -> bool:
    return isinstance(suffix, PhaseFilter) is isinstance(other, PhaseFilter)


# --- resolving ------------------------------------------------------------------------------------


def resolve(address: Address, plan: Plan, now_ms: int) -> Resolved:
    """Return the time an address refers to, by the tempos and phases of a plan.

    With a phase: the time itself, if it is in the phase. Otherwise the next beginning of the phase, or, with
    `~~`, the last beat of its previous occurrence. The phases at a time are those of the policy in
    force then.
    """
    at_ms = _resolve_offset(address, plan, now_ms)
    phase, beats = address.suffix(PhaseFilter), address.suffix(Beats)
    if phase is not None:
        at_ms = _resolve_phase(address, phase, plan, at_ms, is_past=beats is not None and beats.is_past)
    if not 0 <= at_ms < END_MS:
        position = address.offset_of(address.suffixes[0]) if address.suffixes else len(address.base)
        raise BadAddress("that is a time without a date", position=position, hint="from 1970 to 9999")
    beat = plan.timeline.beat_at(at_ms)
    return Resolved(at_ms, beat, phase_of(plan, beat))


def _resolve_offset(address: Address, plan: Plan, now_ms: int) -> int:
    bar_beat, beats = address.suffix(BarBeat), address.suffix(Beats)
    if bar_beat is not None:
        return _resolve_bar(address, bar_beat, plan)
    if beats is not None:
        return plan.timeline.after(now_ms, -beats.count if beats.is_past else beats.count)
    return now_ms


def _resolve_bar(address: Address, wanted: BarBeat, plan: Plan) -> int:
    first_bar = plan.entries[0].first_bar
    bars = wanted.bar - 1 - first_bar
    at = address.offset_of(wanted) + len(";bar=")
    if bars < 0:
        hint = f"the first bar that is known is {first_bar + 1}"
        raise BadAddress(f"bar {wanted.bar} is not known any more", position=at, hint=hint)
    tempo, *others = plan.timeline.tempos
    for later in others:
        available = (later.anchor_ms - tempo.anchor_ms) // tempo.bar_ms
        if bars < available:
            break
        bars, tempo = bars - available, later
    if wanted.beat > tempo.bar_len:
        raise BadAddress(
            f"bar {wanted.bar} has no beat {wanted.beat}",
            position=at + len(f"{wanted.bar}#beat="),
            hint=f"it has {tempo.bar_len}",
        )
    return tempo.anchor_ms + bars * tempo.bar_ms + (wanted.beat - 1) * tempo.beat_ms


def _resolve_phase(address: Address, phase: PhaseFilter, plan: Plan, at_ms: int, *, is_past: bool) -> int:
    """Return the time if it is in the phase, else the next or last time in the phase."""
    known = plan.at(at_ms).policy.phase_beats
    beat = plan.timeline.beat_at(at_ms)
    while phase_of(plan, beat) != phase.name:
        if phase.name in plan.at(beat.epoch_ms).policy.phase_beats:
            next_ms: int | None = beat.epoch_ms - 1 if is_past else beat.ends_ms
        else:
            next_ms = _next_policy_ms(plan, beat.epoch_ms, is_past=is_past)
        if next_ms is None:
            raise BadAddress(
                f"there is no phase {phase.name}",
                position=address.offset_of(phase) + len(";phase="),
                hint=f"there is {', '.join(known)}",
            )
        beat = plan.timeline.beat_at(next_ms)
        at_ms = beat.epoch_ms
    return at_ms


def _next_policy_ms(plan: Plan, at_ms: int, *, is_past: bool) -> int | None:
    """Return the first time of the next policy, or the last one of the previous policy."""
    place = plan.entries.index(plan.at(at_ms))
    if is_past:
        return plan.entries[place].anchor_ms - 1 if place else None
    return plan.entries[place + 1].anchor_ms if place + 1 < len(plan.entries) else None
