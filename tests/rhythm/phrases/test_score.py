"""Scores: how a phrase is shared out, how retries shrink, and what is refused."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vox_mesh.errors import BadScore, BadValue
from vox_mesh.model.base.canonical import canonical, parse
from vox_mesh.model.rhythm.policy import PHASES
from vox_mesh.model.rhythm.score import Score, Span, parse_score

ALONE: Final = """\
score:
  tempo: 15
  bar_len: 8
  phases: {plan: 2, work: 4, review: 2}
  wait_budget: {help: 2, io: 1}
  retry: {max_phrases: 2, backoff: geometric}
  escalation:
    on_wait_exhausted: ["emit:needs-attention", "fallback:coarse-answer"]
    on_overrun: [checkpoint, "defer:next-phrase"]
"""
NEXT_TO: Final = (
    f"ucxl: ucxl://proj:any/*/task/graph_ingest\n{ALONE}budget: {{max_bu: 12, hard_end: bar+3}}\n"
)

BEATS = st.integers(1, 21)


@st.composite
def scores(draw: st.DrawFn) -> Score:
    """Any score, by its document."""
    phases = {phase: draw(BEATS) for phase in PHASES}
    document: dict[str, Any] = {
        "bar_len": sum(phases.values()),
        "phases": phases,
        "retry": {
            "max_phrases": draw(st.integers(1, 16)),
            "backoff": draw(st.sampled_from(["geometric", "none"])),
        },
        "wait_budget": {"help": draw(st.integers(0, 64)), "io": draw(st.integers(0, 64))},
    }
    if draw(st.booleans()):
        document["tempo"] = draw(st.one_of(st.integers(1, 600), st.floats(0.1, 600)))
    if draw(st.booleans()):
        document["escalation"] = {"on_wait_exhausted": ["fallback:a"], "on_overrun": []}
    return Score.of_document(document)


@settings(max_examples=60)
@given(scores(), st.integers(1, 80))
def test_retries_shrink_by_half_never_grow_and_leave_each_phase_a_beat(score: Score, number: int) -> None:
    first, this, following = score.attempt(1), score.attempt(number), score.attempt(number + 1)
    assert first == score.phases.model_dump()
    assert tuple(this) == PHASES
    for phase in PHASES:
        if score.retry.backoff == "none":
            assert this[phase] == first[phase]
        else:
            assert 1 <= following[phase] <= this[phase]
            assert following[phase] == max(1, this[phase] // 2)


@settings(max_examples=60)
@given(scores(), st.integers(1, 20))
def test_phases_follow_each_other_without_a_gap_and_fill_the_bar_the_first_time(
    score: Score, number: int
) -> None:
    spans = score.boundaries(number)
    assert [span.phase for span in spans] == list(PHASES)
    assert spans[0].begins == 0
    assert [span.ends for span in spans[:-1]] == [span.begins for span in spans[1:]]
    assert {span.phase: span.ends - span.begins for span in spans} == score.attempt(number)
    assert spans[-1].ends <= score.bar_len
    assert score.boundaries(1)[-1].ends == score.bar_len


@settings(max_examples=60)
@given(scores())
def test_a_score_survives_canonical_json(score: Score) -> None:
    assert Score.of_document(parse(canonical(score.document()))) == score
    assert parse_score(json.dumps({"score": score.document()})).score == score


@pytest.mark.parametrize("bar", range(3, 65))
def test_without_phases_the_bar_is_shared_out(bar: int) -> None:
    score = Score.of_document({"bar_len": bar})
    assert score.boundaries(1)[-1].ends == bar
    assert abs(score.phases.work - bar / 2) < 1


def test_a_score_is_read_alone_and_beside_its_address_and_budget() -> None:
    alone, neighbour = parse_score(ALONE), parse_score(NEXT_TO)
    assert alone.score == neighbour.score
    assert (alone.ucxl, alone.budget) == (None, None)
    assert neighbour.ucxl == "ucxl://proj:any/*/task/graph_ingest"
    assert neighbour.budget == {"max_bu": 12, "hard_end": "bar+3"}
    assert alone.score.boundaries(2) == [Span("plan", 0, 1), Span("work", 1, 3), Span("review", 3, 4)]
    escalation = alone.score.escalation
    assert (escalation.emits, escalation.fallback) == (["needs-attention"], "coarse-answer")


def test_the_built_in_score_is_one_that_says_nothing_of_its_own() -> None:
    built_in = Score.built_in()
    assert built_in == parse_score("score: {}").score
    assert built_in.attempt(1) == {"plan": 2, "work": 4, "review": 2}
    assert (built_in.escalation.emits, built_in.escalation.fallback) == (["needs-attention"], None)


def test_there_is_no_attempt_before_the_first() -> None:
    with pytest.raises(BadValue, match="got 0"):
        Score.built_in().attempt(0)


def score_of(*lines: str) -> str:
    """A score of which the first of `lines` is the second line."""
    return "\n".join(("score:", *(f"  {line}" for line in lines)))


def escalating(name: str, steps: str) -> str:
    """A score with these steps on the third line."""
    return score_of("escalation:", f"  {name}: {steps}")


_EXHAUSTED: Final = "score.escalation.on_wait_exhausted"
_OVERRUN: Final = "score.escalation.on_overrun"
FAULTS: Final[dict[str, tuple[str, int, str, str]]] = {
    "nothing": ("", 1, "", "there is no score in it"),
    "text": ("score", 1, "", "a score is a map, not text"),
    "none": ("budget: {}", 1, "score", "is missing; allowed: a map of tempo, bar_len, phases"),
    "empty": ("score:", 1, "score", "must not be empty or null; leave it out"),
    "unknown next to": (
        "score: {}\nnote: x",
        2,
        "note",
        "is no field of a score; allowed: budget, score, ucxl",
    ),
    "unknown inside": (
        score_of("bars: 3"),
        2,
        "score.bars",
        "is no field of score; allowed: bar_len, escalation, phases, retry, start, tempo, wait_budget",
    ),
    "written twice": (score_of("tempo: 1", "tempo: 2"), 3, "score.tempo", "written twice, first on line 2"),
    "tempo of 0": (score_of("tempo: 0"), 2, "score.tempo", "must not be 0; allowed: beats a minute"),
    "bar of 2": (
        score_of("bar_len: 2"),
        2,
        "score.bar_len",
        "must not be 2; allowed: an integer from 3 to 64",
    ),
    "sum": (
        score_of("bar_len: 8", "phases: {plan: 2, work: 4, review: 1}"),
        3,
        "score.phases",
        "they sum to 7 beats, and bar_len is 8; set bar_len: 7, or change them",
    ),
    "phase missing": (
        score_of("phases: {plan: 2, work: 6}"),
        2,
        "score.phases.review",
        "is missing; allowed: beats",
    ),
    "another phase": (
        score_of("phases: {plan: 2, work: 4, review: 1, rest: 1}"),
        2,
        "score.phases.rest",
        "is no field of score.phases; allowed: plan, review, work",
    ),
    "no beat": (
        score_of("phases:", "  plan: 0", "  work: 6", "  review: 2"),
        3,
        "score.phases.plan",
        "must not be 0",
    ),
    "phases as names": (
        score_of("phases: [plan, work, review]"),
        2,
        "score.phases",
        "must be a map, not an array",
    ),
    "wait below 0": (
        score_of("wait_budget: {io: -1}"),
        2,
        "score.wait_budget.io",
        "must not be -1; allowed: beats",
    ),
    "wait for more": (
        score_of("wait_budget: {sleep: 1}"),
        2,
        "score.wait_budget.sleep",
        "is no field of score.wait_budget; allowed: help, io",
    ),
    "no phrase": (
        score_of("retry: {max_phrases: 0}"),
        2,
        "score.retry.max_phrases",
        "must not be 0; allowed: an int",
    ),
    "backoff": (score_of("retry: {backoff: linear}"), 2, "score.retry.backoff", "allowed: geometric or none"),
    "steps as text": (escalating("on_overrun", "checkpoint"), 3, _OVERRUN, "must be an array, not text"),
    "another step": (
        escalating("on_overrun", "[stop]"),
        3,
        f"{_OVERRUN}[0]",
        "'stop' is no step; allowed: an array of",
    ),
    "step of the other": (
        escalating("on_wait_exhausted", "[checkpoint]"),
        3,
        f"{_EXHAUSTED}[0]",
        "is no step",
    ),
    "step twice": (
        escalating("on_overrun", "[checkpoint, checkpoint]"),
        3,
        f"{_OVERRUN}[1]",
        "is written twice",
    ),
    "step without a name": (
        escalating("on_wait_exhausted", "['emit:']"),
        3,
        f"{_EXHAUSTED}[0]",
        "is no step",
    ),
    "step as map": (
        escalating("on_wait_exhausted", "[emit: a]"),
        3,
        f"{_EXHAUSTED}[0]",
        "must be text, not a map",
    ),
    "two fallbacks": (
        escalating("on_wait_exhausted", "['fallback:a', 'fallback:b']"),
        3,
        f"{_EXHAUSTED}[1]",
        "there is a fallback before, and one is enough",
    ),
    "too many steps": (
        escalating("on_wait_exhausted", json.dumps([f"emit:a{number}" for number in range(9)])),
        3,
        _EXHAUSTED,
        "has 9; at most 8 fit",
    ),
    "address": ("score: {}\nucxl: http://x", 2, "ucxl", "at offset 0"),
    "budget as number": ("score: {}\nbudget: 3", 2, "budget", "must be a map, not a number"),
    "budget of text": ("score: {}\nbudget:\n  max_bu: x", 3, "budget.max_bu", "must be a number, not text"),
}


@pytest.mark.parametrize(("text", "line", "field", "wrong"), FAULTS.values(), ids=FAULTS.keys())
def test_what_is_wrong_is_reported_with_its_line_and_field(
    text: str, line: int, field: str, wrong: str
) -> None:
    with pytest.raises(BadScore) as caught:
        parse_score(text, "s.yaml")
    (fault,) = caught.value.faults
    assert fault.startswith(f"s.yaml:{line}: {field}: " if field else f"s.yaml:{line}: ")
    assert wrong in fault
    assert caught.value.code == "bad_score"
