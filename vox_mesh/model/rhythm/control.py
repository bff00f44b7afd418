"""The tempo control: a PI controller evaluated once per bar; its decisions can be replayed.

Jobs waiting for busy workers make the tempo faster, as long as phases are kept; overruns and broken promises
make it slower. It has no clock and no state of its own: both are inputs, recorded with each decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

from vox_mesh.errors import MeshError
from vox_mesh.model.base.canonical import JsonObject, canonical, parse
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.rhythm.policy import TempoPolicy
from vox_mesh.model.rhythm.tempo import MINUTE_MS, Tempo

INTEGRAL_GAIN: Final = 0.05
"""The share by which a full error moves the tempo in one bar."""

PROPORTIONAL_SHARE: Final = 0.5
"""The share of the hysteresis a full error is worth at once; below 1, so that no single bar changes it."""

SMOOTHING: Final = 0.25
"""The weight of one bar against all earlier ones: a few overruns may be chance."""

CEILING_MS: Final = 60 * MINUTE_MS
"""How long a tempo that was too fast is not tried again, and a phase keeps the beat that it got."""

# Each reading's weight rises from 0 to 1 between the two numbers.
WAITING: Final = (0.5, 4.0)
"""Waiting jobs per unit of capacity."""

BUSY: Final = (0.7, 0.9)
"""The busy share of the capacity."""

UNEASE: Final = (0.05, 0.08)
"""The rate of overruns or broken promises at which nothing makes the tempo faster."""

STRAIN: Final = (0.12, 0.40)
"""The rate of overruns or broken promises at which the tempo gets slower. In between it stays."""

SATURATED: Final = (0.9, 1.0)
"""The utilisation of the machines at which nothing makes the tempo faster: they have no time left to give."""

OCCUPIED: Final = (0.1, 0.4)
"""The busy share of the capacity below which a raised tempo comes down again."""

ENOUGH_OVERRUNS: Final = 3
"""The number of overruns needed before phases are rebalanced."""

SHORT_BARS: Final = 3
"""For how many bars in a row one phase must be too short before it gets a beat."""

_NEUTRAL_TROUBLE: Final = 0.1
_NEUTRAL_UTILISATION: Final = 0.55
_DECISIVE_FIELDS: Final = {"cluster_id", "initial_bpm", "bar_len_beats", "phases", "limits", "adaptation"}
_OPTIONAL_READINGS: Final = {"queue_by_kind", "cpu_utilisation", "gpu_utilisation", "overruns_by_phase"}
_PHASE_STATE: Final = ("short_phase", "short_bars", "grown_phase", "grown_ms")
_WORK: Final = "work"
_BPM_DIGITS: Final = 4
"""The significant digits of a tempo."""

_RATE_DIGITS: Final = 6


@dataclass(frozen=True, slots=True)
class Readings:
    """The measurements of a bar. `incident` names a reason to freeze the tempo, if there is one."""

    queue_depth: int
    places: int
    utilisation: float
    overrun_rate: float
    broken_rate: float
    incident: str | None = None
    queue_by_kind: Mapping[str, int] = field(default_factory=dict)
    cpu_utilisation: float | None = None
    gpu_utilisation: float | None = None
    overruns_by_phase: Mapping[str, int] = field(default_factory=dict)

    @property
    def trouble(self) -> float:
        """The rate of overruns or of broken promises, whichever is higher."""
        return max(self.overrun_rate, self.broken_rate)

    @property
    def pressure(self) -> float:
        """The weight for going faster, from 0 to 1: jobs wait for busy workers, and phases are kept."""
        waiting = self.queue_depth / self.places if self.places else 0.0
        unhindered = (1 - _ramp(self.trouble, UNEASE)) * (1 - _ramp(self.saturation, SATURATED))
        return _ramp(waiting, WAITING) * _ramp(self.utilisation, BUSY) * unhindered

    @property
    def saturation(self) -> float:
        """The utilisation of the processors or of the GPUs, whichever is higher; 0 if unknown."""
        return max(self.cpu_utilisation or 0.0, self.gpu_utilisation or 0.0)

    @property
    def strain(self) -> float:
        """The weight for going slower, from 0 to 1."""
        return _ramp(self.trouble, STRAIN)

    @property
    def idleness(self) -> float:
        """The idle share, from 0 to 1."""
        return 0.0 if self.queue_depth else 1 - _ramp(self.utilisation, OCCUPIED)


@dataclass(frozen=True, slots=True)
class ControlState:
    """The state passed from one decision to the next."""

    bpm: float
    """The tempo last decided; it may not be in force yet."""
    integral: float = 0.0
    """The accumulated deviation from the policy's initial tempo, as a share of it."""
    utilisation: float = _NEUTRAL_UTILISATION
    overrun_rate: float = 0.0
    broken_rate: float = 0.0
    """Smoothed, like the two rates above."""
    changed_ms: int | None = None
    """From when this tempo is in force."""
    ceiling_bpm: float | None = None
    """A tempo that was too fast."""
    ceiling_ms: int = 0
    """Until when the ceiling applies."""
    short_phase: str | None = None
    """The phase that was too short in the last bar."""
    short_bars: int = 0
    """In how many bars in a row it was."""
    grown_phase: str | None = None
    """The phase that last got a beat."""
    grown_ms: int = 0
    """Until when it does not give up a beat."""

    @classmethod
    def beginning(cls, policy: TempoPolicy, bpm: float, changed_ms: int | None = None) -> Self:
        """Return the state that continues smoothly from a tempo set from outside."""
        return cls(bpm, round(bpm / policy.initial_bpm - 1, _RATE_DIGITS), changed_ms=changed_ms)


@dataclass(frozen=True, slots=True)
class TempoDecision:
    """The decision for the bars to come, and its reason."""

    bpm: float
    state: ControlState
    reason: str
    is_change: bool
    inputs: Readings
    wanted_bpm: float
    """The tempo without hysteresis and step limits."""
    phases: Mapping[str, int] | None = None
    """The beats of each phase, if one of them moves."""


def decide(
    policy: TempoPolicy, state: ControlState, readings: Readings, now_ms: int, from_ms: int | None = None
) -> TempoDecision:
    """Return the tempo that follows from the readings of the bar that has just ended.

    `from_ms` is the downbeat from which a change would be in force, by default now.
    """

    def stay(why: str, after: ControlState = state, wanted_bpm: float = state.bpm) -> TempoDecision:
        return TempoDecision(state.bpm, after, why, False, readings, wanted_bpm)

    if not policy.adaptation.enable:
        return stay("off: the policy does not adapt")
    if readings.incident is not None:
        return stay(f"frozen: {readings.incident}")
    bar_ms = Tempo(state.bpm, policy.bar_len_beats).bar_ms
    if state.changed_ms is not None and now_ms < state.changed_ms + bar_ms:
        return stay("settling: no bar has ended yet in this tempo")

    smoothed = _smooth(state, readings)
    error = _error(policy, state, smoothed)
    limits = _limits(policy, state, smoothed, now_ms)
    phases, counted = _redistribute(policy, state, readings, now_ms)
    after = replace(
        counted,
        integral=_integrate(policy, state, error, limits),
        utilisation=smoothed.utilisation,
        overrun_rate=smoothed.overrun_rate,
        broken_rate=smoothed.broken_rate,
    )
    wanted = _clamp(_round_bpm(_level(policy, after.integral, error)), limits)
    is_soon = state.changed_ms is not None and now_ms < state.changed_ms + MINUTE_MS
    changed_ms = now_ms if from_ms is None else from_ms
    if phases is not None and after.short_bars >= SHORT_BARS and not is_soon:
        return _move_beat(replace(after, changed_ms=changed_ms), phases, readings, wanted, now_ms)
    if abs(wanted - state.bpm) < _hysteresis(policy) * state.bpm or wanted == state.bpm:
        return stay("steady: what is wanted is near enough", after, wanted)
    if is_soon:
        return stay("waiting: it changes at most once a minute", after, wanted)
    step = policy.adaptation.max_step_bpm
    bpm = _clamp(wanted, (state.bpm - step, state.bpm + step))
    after = replace(after, bpm=bpm, changed_ms=changed_ms)
    if bpm < state.bpm and smoothed.strain:
        # The smoothed readings belong to the faster tempo: discard them.
        after = replace(_ease(after), ceiling_bpm=state.bpm, ceiling_ms=now_ms + CEILING_MS)
    return TempoDecision(bpm, after, _reason(bpm > state.bpm, smoothed), True, readings, wanted)


def _ease(state: ControlState) -> ControlState:
    """Return the state with neutral rates: the smoothed ones belong to bars unlike the next ones."""
    return replace(
        state,
        overrun_rate=min(state.overrun_rate, _NEUTRAL_TROUBLE),
        broken_rate=min(state.broken_rate, _NEUTRAL_TROUBLE),
    )


def _smooth(state: ControlState, readings: Readings) -> Readings:
    """Return the smoothed readings."""

    def towards(before: float, now: float) -> float:
        return round(before + SMOOTHING * (now - before), _RATE_DIGITS)

    return replace(
        readings,
        utilisation=towards(state.utilisation, readings.utilisation),
        overrun_rate=towards(state.overrun_rate, readings.overrun_rate),
        broken_rate=towards(state.broken_rate, readings.broken_rate),
    )


def _error(policy: TempoPolicy, state: ControlState, smoothed: Readings) -> float:
    """Return the control error, from -1 (slower) to 1 (faster)."""
    error = smoothed.pressure - smoothed.strain
    if error == 0 and state.bpm > policy.initial_bpm:
        # Only downwards: where the initial tempo was too fast, it would be so again.
        return -smoothed.idleness
    return error


def _reason(is_faster: bool, smoothed: Readings) -> str:
    if is_faster:
        return "faster: work waits, and places are busy"
    if not smoothed.strain:
        return "slower: there is little to do"
    if smoothed.overrun_rate >= smoothed.broken_rate:
        return "slower: phases are overrun"
    return "slower: promises are broken"


def _round_bpm(bpm: float) -> float:
    return float(f"{bpm:.{_BPM_DIGITS}g}")


def _level(policy: TempoPolicy, integral: float, error: float) -> float:
    return policy.initial_bpm * (1 + integral) * (1 + PROPORTIONAL_SHARE * _hysteresis(policy) * error)


def _integrate(policy: TempoPolicy, state: ControlState, error: float, limits: tuple[float, float]) -> float:
    """Return the next integral, limited so that the tempo stops changing once the cause is gone."""
    now = state.integral
    if error == 0:
        return now
    reach = policy.adaptation.max_step_bpm + _hysteresis(policy) * state.bpm
    farthest = _clamp(state.bpm + (reach if error > 0 else -reach), limits)
    bound = farthest / _level(policy, 0.0, error) - 1
    after = now + INTEGRAL_GAIN * error * (1 + now)
    bounded = max(now, min(after, bound)) if error > 0 else min(now, max(after, bound))
    return round(bounded, _RATE_DIGITS)


def _hysteresis(policy: TempoPolicy) -> float:
    return policy.adaptation.hysteresis_pct / 100


def _limits(policy: TempoPolicy, state: ControlState, smoothed: Readings, now_ms: int) -> tuple[float, float]:
    """Return the bounds of the tempo: below any ceiling, and no slower than necessary."""
    low, high = policy.limits.min_bpm, policy.limits.max_bpm
    if not smoothed.strain:
        low = max(low, min(state.bpm, policy.initial_bpm))
    if state.ceiling_bpm is not None and now_ms < state.ceiling_ms:
        # Never below the current tempo: a ceiling only prevents a rise.
        high = min(high, max(state.bpm, state.ceiling_bpm / (1 + _hysteresis(policy))))
    return low, max(low, high)


def _clamp(value: float, limits: tuple[float, float]) -> float:
    return max(limits[0], min(value, limits[1]))


def _ramp(value: float, ends: tuple[float, float]) -> float:
    return _clamp((value - ends[0]) / (ends[1] - ends[0]), (0.0, 1.0))


# --- phases --------------------------------------------------------------------------------------------


def suggest_phases(policy: TempoPolicy, overruns_by_phase: Mapping[str, int]) -> dict[str, int]:
    """Return the beats of each phase, with one more for the phase with most of the overruns.

    Work gives it up; a beat for work comes from the longest other phase. No phase gives up its last beat.
    """
    beats = dict(policy.phase_beats)
    counts = {phase: overruns_by_phase.get(phase, 0) for phase in beats}
    total = sum(counts.values())
    worst = max(counts, key=counts.__getitem__)
    if total < ENOUGH_OVERRUNS or 2 * counts[worst] <= total:
        return beats
    others = [phase for phase in beats if phase != worst and beats[phase] > 1]
    if others:
        giver = _WORK if _WORK in others else max(others, key=beats.__getitem__)
        beats[giver] -= 1
        beats[worst] += 1
    return beats


def _redistribute(
    policy: TempoPolicy, state: ControlState, readings: Readings, now_ms: int
) -> tuple[dict[str, int] | None, ControlState]:
    """Return the phases with one beat moved, if one should be, and the state with the bar counted."""
    if not policy.adaptation.phases:
        return None, state
    beats = suggest_phases(policy, readings.overruns_by_phase)
    change = {name: count - policy.phase_beats[name] for name, count in beats.items()}
    short = next((name for name, by in change.items() if by > 0), None)
    giver = next((name for name, by in change.items() if by < 0), None)
    if short is None or (giver == state.grown_phase and now_ms < state.grown_ms):
        return None, replace(state, short_phase=None, short_bars=0)
    bars = min(state.short_bars + 1, SHORT_BARS) if short == state.short_phase else 1
    return beats, replace(state, short_phase=short, short_bars=bars)


def _move_beat(
    after: ControlState, phases: Mapping[str, int], readings: Readings, wanted_bpm: float, now_ms: int
) -> TempoDecision:
    """Return the decision that moves a beat. The tempo stays: bars in the new phases are judged first."""
    grown = replace(
        _ease(after),
        short_phase=None,
        short_bars=0,
        grown_phase=after.short_phase,
        grown_ms=now_ms + CEILING_MS,
    )
    reason = f"phases: {after.short_phase} is too short"
    return TempoDecision(after.bpm, grown, reason, True, readings, wanted_bpm, phases)


# --- recording and replay --------------------------------------------------------------------------


def decisive(policy: TempoPolicy) -> dict[str, Any]:
    """Return the parts of a policy that decisions depend on."""
    document = policy.model_dump(mode="json", include=_DECISIVE_FIELDS)
    if not policy.adaptation.phases:  # earlier versions did not record it
        del document["adaptation"]["phases"]
    return document


def record(
    policy: TempoPolicy, before: ControlState, decision: TempoDecision, now_ms: int, from_ms: int
) -> dict[str, Any]:
    """Return a decision with all its inputs: the payload of its op."""
    moved = {} if decision.phases is None else {"phases": _phases_document(decision.phases)}
    return {
        "at_ms": now_ms,
        "from_ms": from_ms,
        "policy": decisive(policy),
        "readings": _readings_document(decision.inputs),
        "before": _state_document(before),
        "after": _state_document(decision.state),
        "bpm": decision.bpm,
        "wanted_bpm": decision.wanted_bpm,
        "is_change": decision.is_change,
        "reason": decision.reason,
        **moved,
    }


def _phases_document(beats: Mapping[str, int]) -> list[dict[str, int]]:
    """Return phases as a policy has them: a map in canonical JSON would lose their order."""
    return [{name: count} for name, count in beats.items()]


def _state_document(state: ControlState) -> dict[str, Any]:
    """Return the state; unused fields of phases are left out, since earlier versions did not record them."""
    document = asdict(state)
    return {name: value for name, value in document.items() if value or name not in _PHASE_STATE}


def _readings_document(readings: Readings) -> dict[str, Any]:
    """Return the readings; unknown ones are left out, since earlier versions did not record them."""
    left_out = {name for name in _OPTIONAL_READINGS if getattr(readings, name) in (None, {})}
    return {name: value for name, value in asdict(readings).items() if name not in left_out}


def state_after(payload: JsonObject) -> ControlState:
    """Return the state after a recorded decision."""
    return _parse_state(payload["after"])


def policy_of(payload: JsonObject) -> TempoPolicy:
    """Return the policy of a recorded decision."""
    return TempoPolicy.of_document(payload["policy"])


def policy_after(payload: JsonObject) -> JsonObject:
    """Return the decisive parts of the policy after a recorded decision."""
    moved = payload.get("phases")
    return payload["policy"] if moved is None else {**payload["policy"], "phases": moved}


def readings_of(payload: JsonObject) -> Readings:
    """Return the readings of a recorded decision."""
    document = payload["readings"]
    return Readings(
        int(document["queue_depth"]),
        int(document["places"]),
        float(document["utilisation"]),
        float(document["overrun_rate"]),
        float(document["broken_rate"]),
        document["incident"],
        document.get("queue_by_kind", {}),
        _optional_float(document.get("cpu_utilisation")),
        _optional_float(document.get("gpu_utilisation")),
        document.get("overruns_by_phase", {}),
    )


def _parse_state(document: JsonObject) -> ControlState:
    # Canonical JSON writes 12.0 as 12.
    return ControlState(
        float(document["bpm"]),
        float(document["integral"]),
        float(document["utilisation"]),
        float(document["overrun_rate"]),
        float(document["broken_rate"]),
        document["changed_ms"],
        _optional_float(document["ceiling_bpm"]),
        document["ceiling_ms"],
        **{name: document[name] for name in _PHASE_STATE if name in document},
    )


def _optional_float(value: float | None) -> float | None:
    return None if value is None else float(value)


class Divergence(NamedTuple):
    """A recorded decision that differs from the recomputed one, or does not follow from the previous one."""

    op_id: str
    what: str
    recorded: str
    recomputed: str


def replay(entries: Iterable[LogEntry]) -> Iterator[Divergence]:
    """Recompute recorded decisions from their inputs, in order, and yield the divergences.

    A refused decision changed nothing, so the next follows from the one before it.
    """
    last: ControlState | None = None
    for entry in entries:
        try:
            payload = parse(entry.payload)
            policy, before = policy_of(payload), _parse_state(payload["before"])
            at_ms, from_ms = int(payload["at_ms"]), int(payload["from_ms"])
            again = decide(policy, before, readings_of(payload), at_ms, from_ms)
        except (MeshError, ValueError, KeyError, TypeError) as error:
            yield Divergence(entry.op_id, "payload", entry.payload, f"unreadable: {error}")
            continue
        text = canonical(record(policy, before, again, at_ms, from_ms))
        if text != entry.payload:
            yield Divergence(entry.op_id, "decision", entry.payload, text)
        start = ControlState.beginning(policy, before.bpm, before.changed_ms)
        if last is not None and before not in (last, start):
            yield Divergence(
                entry.op_id, "before", canonical(_state_document(before)), canonical(_state_document(last))
            )
        if entry.accepted:
            last = again.state
