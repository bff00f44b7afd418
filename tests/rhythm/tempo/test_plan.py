"""The plan of tempos: each begins on a downbeat that everyone knows of two bars before."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vox_mesh.errors import BadValue
from vox_mesh.model.rhythm.plan import LEAD_BARS, BeatFrame, Plan, PlanEntry, median
from vox_mesh.model.rhythm.policy import TempoPolicy

NOW_MS = 1_800_000_000_000
POLICIES = st.builds(
    lambda bpm, bar: TempoPolicy.of_document(
        {"cluster_id": "east", "initial_bpm": bpm, "bar_len_beats": bar}
    ),
    st.integers(1, 600),
    st.integers(3, 16),
)


def entry(bpm: float, hlc: str = "") -> PlanEntry:
    """One that holds from the beginning."""
    policy = TempoPolicy.of_document({"cluster_id": "east", "initial_bpm": bpm})
    return PlanEntry(PlanEntry.of(policy).policy, PlanEntry.of(policy).tempo, hlc=hlc)


@given(POLICIES, st.lists(st.tuples(POLICIES, st.integers(0, 10**6)), max_size=6))
def test_each_tempo_begins_on_a_downbeat_of_the_one_before_at_least_two_bars_ahead(
    first: TempoPolicy, later: list[tuple[TempoPolicy, int]]
) -> None:
    plan, now_ms = Plan(PlanEntry.of(first)), NOW_MS
    for policy, pause_ms in later:
        now_ms += pause_ms
        bar_ms = plan.at(now_ms).tempo.bar_ms
        anchor_ms = plan.next_anchor_ms(now_ms)
        assert anchor_ms >= now_ms + LEAD_BARS * bar_ms
        assert plan.timeline.beat_at(anchor_ms).window_ms == anchor_ms
        before = plan.timeline
        plan = Plan(
            plan.entries[0],
            (*plan.entries[1:], plan.followed_by(policy, policy.initial_bpm, anchor_ms, "test")),
        )
        assert plan.head.policy is policy
        assert before.beat_at(anchor_ms - 1) == plan.timeline.beat_at(anchor_ms - 1)
        assert plan.timeline.beat_at(anchor_ms).is_downbeat
    bars = plan.timeline.bars_between(0, plan.head.anchor_ms)
    assert plan.head.first_bar == bars


@given(st.permutations(range(5)), st.lists(st.integers(6, 24), min_size=5, max_size=5))
def test_the_order_in_which_tempos_are_heard_of_changes_nothing(order: list[int], bpms: list[int]) -> None:
    first = entry(12)
    entries: list[PlanEntry] = []
    for number, bpm in enumerate(bpms):
        plan = Plan(first, entries)
        policy = TempoPolicy.of_document({"cluster_id": "east", "initial_bpm": bpm})
        entries.append(plan.followed_by(policy, bpm, plan.next_anchor_ms(NOW_MS), f"{number}"))
    heard = Plan(first, [entries[number] for number in order])
    assert heard.timeline == Plan(first, entries).timeline
    assert len(heard.entries) == 6


def test_what_does_not_follow_from_what_was_there_before_is_the_beginning() -> None:
    later = Plan(entry(7)).followed_by(entry(30).policy, 30, Plan(entry(7)).next_anchor_ms(NOW_MS), "")
    assert [each.tempo.bpm for each in Plan(entry(12), [later]).entries] == [30]
    assert [each.tempo.bpm for each in Plan(entry(7), [later]).entries] == [7, 30]


def test_of_two_with_one_anchor_the_later_by_its_hybrid_time_holds() -> None:
    older, newer = entry(12, "1-"), entry(20, "2-")
    assert Plan(entry(6), [newer, older]).head is newer
    assert Plan(entry(6), [older, newer]).head is newer


@given(st.lists(st.integers(6, 24), min_size=1, max_size=7), st.randoms())
def test_one_that_sees_the_same_policies_takes_the_same_one_in_the_middle(
    bpms: list[int], chance: Random
) -> None:
    entries = [entry(bpm) for bpm in bpms]
    middle = median(entries)
    chance.shuffle(entries)
    assert median(entries).policy_hash == middle.policy_hash
    assert middle.tempo.bpm == sorted(bpms)[(len(bpms) - 1) // 2]


# --- frames ---------------------------------------------------------------------------------------


def test_a_frame_survives_being_sent() -> None:
    holds = entry(12)
    frame = BeatFrame.of(holds.tempo.beat_at(NOW_MS), holds, "1800000000000-00000-a")
    assert BeatFrame.parse(frame.document()) == frame
    assert frame.downbeat is (frame.beat_index == 1)
    assert frame.epoch_ms <= NOW_MS < frame.epoch_ms + frame.beat_ms


def test_the_counters_of_old_are_mapped_and_the_bar_is_dropped() -> None:
    holds = entry(15)
    frame = BeatFrame.of(holds.tempo.beat_at(NOW_MS), holds, "1800000000000-00000-a")
    old = frame.document() | {"bar": 1287, "beat": frame.beat_index}
    for name in ("beat_index", "beat_epoch", "downbeat", "source"):
        del old[name]
    assert BeatFrame.parse(old) == frame


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"beat_index": 9}, "beat_index"),
        ({"beat_index": 0}, "beat_index"),
        ({"beat_index": True}, "beat_index"),
        ({"beat_ms": 0}, "beat_ms"),
        ({"beat_epoch": "soon"}, "beat_epoch"),
        ({"tempo_bpm": "fast"}, "tempo_bpm"),
        ({"downbeat": "yes"}, "downbeat"),
        ({"tune": 1}, "tune"),
    ],
    ids=str,
)
def test_what_is_no_frame_is_refused_by_its_field(change: dict[str, object], named: str) -> None:
    holds = entry(12)
    frame = BeatFrame.of(holds.tempo.beat_at(NOW_MS), holds, "1800000000000-00000-a")
    with pytest.raises(BadValue, match=named):
        BeatFrame.parse({**frame.document(), **change})
