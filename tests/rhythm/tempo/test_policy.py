"""Tempo policies: what they say of a bar, what is refused, and what they are known by."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vox_mesh.errors import BadPolicy
from vox_mesh.model.base.canonical import canonical, parse
from vox_mesh.model.rhythm.policy import PHASES, TempoPolicy, parse_policy, policy_hash
from vox_mesh.model.rhythm.tempo import FASTEST_BPM, SLOWEST_BPM, Tempo

WHOLE: Final = """\
cluster_id: chorus-aus-01
initial_bpm: 12
bar_len_beats: 8
phases: [plan, work, review]
limits:
  max_bpm: 24
  min_bpm: 6
adaptation:
  enable: true
  hysteresis_pct: 10
  change_per_minute: 1_beat
observability:
  emit_bar_reports: true
security:
  revoke_after_bars: 2
"""

NAMES = st.sampled_from(["plan", "work", "rest", "a", "b-2", "c_d", "z" * 32])
BPMS = st.one_of(st.integers(1, 600), st.floats(SLOWEST_BPM, FASTEST_BPM))


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of policies that can be used."""
    low, bpm, high = sorted(draw(st.tuples(BPMS, BPMS, BPMS)))
    phases = draw(st.dictionaries(NAMES, st.integers(1, 8), min_size=1))
    names = list(phases)
    more = {
        "bar_len_beats": sum(phases.values()),
        "phases": draw(st.sampled_from([names, phases])),
        "limits": {"min_bpm": low, "max_bpm": high},
        "adaptation": draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "enable": st.booleans(),
                    "hysteresis_pct": st.integers(0, 100),
                    "change_per_minute": st.sampled_from(["1_beat", "2_beats", "0.5_beats"]),
                },
            )
        ),
        "observability": {"emit_bar_reports": draw(st.booleans())},
        "security": {"revoke_after_bars": draw(st.integers(0, 64))},
    }
    left_out = draw(st.sets(st.sampled_from(["limits", "adaptation", "observability", "security"])))
    kept = {name: value for name, value in more.items() if name not in left_out}
    return {"cluster_id": "c-1", "initial_bpm": bpm, **kept}


@settings(max_examples=60)
@given(documents())
def test_the_phases_cover_the_bar_exactly_in_the_order_that_was_written(fields: dict[str, Any]) -> None:
    policy = TempoPolicy.of_document(fields)
    beats = policy.phase_beats
    assert list(beats) == list(fields["phases"])
    assert sum(beats.values()) == policy.bar_len_beats
    assert min(beats.values()) >= 1
    by_beat = [policy.phase_at(index) for index in range(1, policy.bar_len_beats + 1)]
    assert by_beat == [name for name, count in beats.items() for _ in range(count)]
    if isinstance(fields["phases"], dict):
        assert beats == fields["phases"]
    else:
        assert max(beats.values()) - min(beats.values()) <= 1


@pytest.mark.parametrize("bar", range(3, 65))
def test_work_has_twice_the_share_of_planning_and_review(bar: int) -> None:
    policy = TempoPolicy.of_document({"cluster_id": "c", "initial_bpm": 12, "bar_len_beats": bar})
    beats = policy.phase_beats
    assert tuple(beats) == PHASES
    assert sum(beats.values()) == bar
    for phase, share in zip(PHASES, (bar / 4, bar / 2, bar / 4), strict=True):
        assert beats[phase] >= 1
        assert abs(beats[phase] - share) < 1


@settings(max_examples=60)
@given(documents())
def test_a_policy_survives_canonical_json_and_is_known_by_the_same_hash(fields: dict[str, Any]) -> None:
    policy = TempoPolicy.of_document(fields)
    again = TempoPolicy.of_document(parse(canonical(policy.document())))
    assert again == policy
    assert list(again.phase_beats.items()) == list(policy.phase_beats.items())
    tempo = Tempo(policy.initial_bpm, policy.bar_len_beats)
    assert policy_hash(again, tempo) == policy_hash(policy, tempo)
    assert parse_policy(json.dumps(policy.document())) == policy


@settings(max_examples=60)
@given(documents())
def test_the_tempo_is_within_the_limits_and_these_are_tempos(fields: dict[str, Any]) -> None:
    policy = TempoPolicy.of_document(fields)
    limits = policy.limits
    assert SLOWEST_BPM <= limits.min_bpm <= policy.initial_bpm <= limits.max_bpm <= FASTEST_BPM
    if "limits" in fields:
        assert limits.model_dump() == fields["limits"]


def test_a_whole_policy_is_read_as_it_was_written() -> None:
    policy = parse_policy(WHOLE)
    assert policy.model_dump(mode="json") == {
        "cluster_id": "chorus-aus-01",
        "initial_bpm": 12.0,
        "bar_len_beats": 8,
        "phases": ["plan", "work", "review"],
        "limits": {"min_bpm": 6.0, "max_bpm": 24.0},
        "adaptation": {
            "enable": True,
            "hysteresis_pct": 10.0,
            "change_per_minute": "1_beat",
            "phases": False,
        },
        "observability": {"emit_bar_reports": True},
        "security": {"revoke_after_bars": 2},
    }
    assert policy.adaptation.max_step_bpm == 1.0
    assert policy.phase_beats == {"plan": 2, "work": 4, "review": 2}


def test_the_built_in_policy_is_one_that_could_have_been_written() -> None:
    built_in = TempoPolicy.built_in("here")
    assert built_in == parse_policy("cluster_id: here\ninitial_bpm: 12")
    assert built_in.model_dump() == TempoPolicy.of_document(built_in.document()).model_dump()
    assert (built_in.limits.min_bpm, built_in.limits.max_bpm) == (6.0, 24.0)
    assert built_in.adaptation.enable is False


def test_a_policy_is_known_by_all_that_makes_its_beats() -> None:
    policy, tempo = parse_policy(WHOLE), Tempo(12, 8, 0)
    hashes = {
        policy_hash(policy, tempo),
        policy_hash(parse_policy(WHOLE.replace("aus-01", "aus-02")), tempo),
        policy_hash(
            parse_policy(WHOLE.replace("[plan, work, review]", "{plan: 2, work: 4, review: 2}")), tempo
        ),
        policy_hash(
            parse_policy(WHOLE.replace("[plan, work, review]", "{work: 4, plan: 2, review: 2}")), tempo
        ),
        policy_hash(policy, Tempo(12.5, 8, 0)),
        policy_hash(policy, Tempo(12, 4, 0)),
        policy_hash(policy, Tempo(12, 8, 40_000)),
    }
    assert len(hashes) == 7
    assert all(len(each) == 71 and each.startswith("sha256:") for each in hashes)
    as_usual = policy_of("security: {revoke_after_bars: 2}", "adaptation: {enable: true}")
    assert policy_hash(parse_policy(as_usual.replace("c\n", "chorus-aus-01\n", 1)), tempo) in hashes


def policy_of(*lines: str) -> str:
    """A policy of which the first of `lines` is the third line."""
    return "\n".join(("cluster_id: c", "initial_bpm: 12", *lines))


# What is written, then the line, the field (empty: the whole) and a part of what is said of it.
FAULTS: Final[dict[str, tuple[str | bytes, int, str, str]]] = {
    "nothing": ("", 1, "", "there is no policy in it"),
    "an array": ("- 1", 1, "", "a policy is a map, not an array"),
    "two": (policy_of("---", "a: 1"), 4, "", "there is more than one policy in it"),
    "no YAML": (policy_of("phases: [a"), 3, "", "this is no YAML and no JSON"),
    "no YAML after it": (policy_of("---", "}"), 4, "", "this is no YAML and no JSON"),
    "not UTF-8": (b"cluster_id: \xff", 1, "", "this is not UTF-8"),
    "anchor": (policy_of("security: &a {}"), 3, "security", "&a is an anchor"),
    "written twice": (policy_of("initial_bpm: 13"), 3, "initial_bpm", "written twice, first on line 2"),
    "unknown": (policy_of("tempo: 1"), 3, "tempo", "is no field of a policy; allowed: adaptation, bar_len"),
    "unknown inside": (
        policy_of("limits:", "  min_bpm: 1", "  max_bpm: 12", "  mean: 3"),
        6,
        "limits.mean",
        "is no field of limits; allowed: max_bpm, min_bpm",
    ),
    "no cluster": ("initial_bpm: 12", 1, "cluster_id", "is missing; allowed: 1 to 64 letters"),
    "no tempo": ("cluster_id: c", 1, "initial_bpm", "is missing; allowed: beats a minute"),
    "cluster as number": ("initial_bpm: 12\ncluster_id: 1", 2, "cluster_id", "must be text, in quotes"),
    "cluster with a space": ("initial_bpm: 12\ncluster_id: a b", 2, "cluster_id", "must not be 'a b'"),
    "cluster with a newline": ('initial_bpm: 12\ncluster_id: "a\\n"', 2, "cluster_id", "must not be"),
    "tempo as text": ("cluster_id: c\ninitial_bpm: fast", 2, "initial_bpm", "must be a number, not text"),
    "tempo as true": ("cluster_id: c\ninitial_bpm: true", 2, "initial_bpm", "must be a number, not true"),
    "no tempo at all": ("cluster_id: c\ninitial_bpm: 0", 2, "initial_bpm", "must not be 0; allowed: beats a"),
    "too fast": ("cluster_id: c\ninitial_bpm: 601", 2, "initial_bpm", "must not be 601; allowed: beats a"),
    "bar of 0": (policy_of("bar_len_beats: 0"), 3, "bar_len_beats", "must not be 0; allowed: an integer"),
    "bar of 65": (policy_of("bar_len_beats: 65"), 3, "bar_len_beats", "must not be 65; allowed: an integer"),
    "half a beat": (policy_of("bar_len_beats: 7.5"), 3, "bar_len_beats", "must be an integer"),
    "bar as text": (policy_of("bar_len_beats: '8'"), 3, "bar_len_beats", "must be an integer, not text"),
    "phases as text": (policy_of("phases: work"), 3, "phases", "must be an array or a map, not text"),
    "no phases": (policy_of("phases: []"), 3, "phases", "must not be empty"),
    "phase of no word": (policy_of("phases: [plan, a b]"), 3, "phases[1]", "'a b' is no name of a phase"),
    "phase in capitals": (policy_of("phases: {Plan: 8}"), 3, "phases.Plan", "'Plan' is no name of a phase"),
    "phase as number": (policy_of("phases: [1]"), 3, "phases[0]", "must be a name, not a number"),
    "phase twice": (policy_of("phases:", "- a", "- b", "- a"), 6, "phases[2]", "a is named twice"),
    "phase twice with beats": (
        policy_of("phases:", "- {a: 4}", "- {a: 4}"),
        5,
        "phases[1].a",
        "a is named twice",
    ),
    "phase without beats": (policy_of("phases: {a: 8, b: 0}"), 3, "phases.b", "1 or more, not 0"),
    "phase of half a beat": (policy_of("phases: {a: 7.5}"), 3, "phases.a", "1 or more, not 7.5"),
    "too few beats": (policy_of("phases: {a: 4, b: 3}"), 3, "phases", "they sum to 7 beats, and a bar has 8"),
    "too many phases": (
        policy_of("phases: [plan, work, review]", "bar_len_beats: 2"),
        3,
        "phases",
        "3 phases need a beat each, and a bar has 2",
    ),
    "limits as text": (policy_of("limits: wide"), 3, "limits", "must be a map, not text"),
    "limits as nothing": (policy_of("limits:"), 3, "limits", "must not be empty or null; leave it out"),
    "one limit": (policy_of("limits: {min_bpm: 6}"), 3, "limits.max_bpm", "is missing; allowed: beats a min"),
    "limits in disorder": (
        policy_of("limits:", "  max_bpm: 6", "  min_bpm: 24"),
        5,
        "limits.min_bpm",
        "24 is more than max_bpm, 6",
    ),
    "below the limits": (
        policy_of("limits: {min_bpm: 13, max_bpm: 24}"),
        2,
        "initial_bpm",
        "12 is not within limits, 13 to 24",
    ),
    "above the limits": (
        policy_of("limits: {min_bpm: 6, max_bpm: 11.5}"),
        2,
        "initial_bpm",
        "12 is not within limits, 6 to 11.5",
    ),
    "enabled by text": (
        policy_of("adaptation: {enable: yes}"),
        3,
        "adaptation.enable",
        "must be true or false",
    ),
    "hysteresis": (
        policy_of("adaptation:", "  hysteresis_pct: 101"),
        4,
        "adaptation.hysteresis_pct",
        "must not be 101",
    ),
    "change as number": (
        policy_of("adaptation: {change_per_minute: 1}"),
        3,
        "adaptation.change_per_minute",
        "must be text",
    ),
    "change of nothing": (
        policy_of("adaptation: {change_per_minute: 0_beats}"),
        3,
        "adaptation.change_per_minute",
        "'0_beats' is no number of beats; allowed: by how much",
    ),
    "change in bars": (
        policy_of("adaptation: {change_per_minute: 1_bar}"),
        3,
        "adaptation.change_per_minute",
        "such as 1_beat or 2.5_beats",
    ),
    "revoked before": (
        policy_of("security: {revoke_after_bars: -1}"),
        3,
        "security.revoke_after_bars",
        "must not be -1; allowed: for how many bars",
    ),
}


@pytest.mark.parametrize(("text", "line", "field", "wrong"), FAULTS.values(), ids=FAULTS.keys())
def test_what_is_wrong_is_reported_with_its_line_and_field(
    text: str | bytes, line: int, field: str, wrong: str
) -> None:
    with pytest.raises(BadPolicy) as caught:
        parse_policy(text, "p.yaml")
    (fault,) = caught.value.faults
    assert fault.startswith(f"p.yaml:{line}: {field}: " if field else f"p.yaml:{line}: ")
    assert wrong in fault
    assert caught.value.code == "bad_policy"


def test_all_faults_of_a_file_are_reported_in_their_order() -> None:
    with pytest.raises(BadPolicy) as caught:
        parse_policy("security: 1\nphases: {}\ncluster_id: c\nnothing: 1\ninitial_bpm:\n", "p.yaml")
    assert [fault.split(": ")[:2] for fault in caught.value.faults] == [
        ["p.yaml:1", "security"],
        ["p.yaml:2", "phases"],
        ["p.yaml:4", "nothing"],
        ["p.yaml:5", "initial_bpm"],
    ]


def test_fields_made_in_code_are_refused_by_their_place() -> None:
    with pytest.raises(BadPolicy) as caught:
        TempoPolicy.of_document({"cluster_id": "c", "initial_bpm": 12, "limits": {"min_bpm": 1}})
    assert caught.value.faults[0].startswith("limits.max_bpm: is missing")


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from([*TempoPolicy.model_fields, "else"]),
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=3)),
    ).map(lambda fields: json.dumps(fields, indent=1))
)
def test_whatever_is_written_is_a_policy_or_has_faults_on_its_lines(text: str) -> None:
    try:
        policy: TempoPolicy | None = parse_policy(text, "p.json")
        faults: tuple[str, ...] = ()
    except BadPolicy as bad:
        policy, faults = None, bad.faults
    assert faults if policy is None else TempoPolicy.of_document(policy.document()) == policy
    for fault in faults:
        name, line, _ = fault.split(":", 2)
        assert name == "p.json"
        assert 1 <= int(line) <= text.count("\n") + 1
