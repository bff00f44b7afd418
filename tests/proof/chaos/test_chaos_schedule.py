"""The schedule of a run is drawn from its seed alone, and leaves nothing out."""

from __future__ import annotations

from collections import defaultdict

import pytest

from proof.chaos.schedule import (
    DEFAULT_FAULTS,
    ROLLBACKS,
    SORTS,
    Kind,
    Lane,
    Schedule,
    StoreKind,
    draw_schedule,
    kinds_on,
    lane_of,
    of_seed,
)
from proof.fault_kinds import choices_of, select_kinds

_NODES = ("ann", "ben", "cleo", "dan")


def _draw(seed: int, store: StoreKind, seconds: float = 180.0) -> Schedule:
    return draw_schedule(seed, seconds, store, _NODES)


@pytest.mark.parametrize("store", StoreKind)
def test_the_same_seed_is_the_same_schedule_and_another_is_another(store: StoreKind) -> None:
    assert _draw(7, store) == _draw(7, store)
    assert _draw(7, store).document() == _draw(7, store).document()
    assert _draw(7, store).faults != _draw(8, store).faults


@pytest.mark.parametrize("store", StoreKind)
def test_every_kind_comes_in_each_long_run_and_in_some_short_one(store: StoreKind) -> None:
    for seed in range(20):
        kinds = of_seed(seed, store, DEFAULT_FAULTS)
        assert {fault.kind for fault in _draw(seed, store).faults} == set(kinds_on(store, kinds))
    short = [_draw(seed, store, 30.0) for seed in range(20)]
    assert {fault.kind for each in short for fault in each.faults} == set(kinds_on(store))


def test_a_seed_draws_rollbacks_or_clock_steps_and_never_both() -> None:
    drawn_kinds = [of_seed(seed, StoreKind.SQLD, DEFAULT_FAULTS) for seed in range(20)]
    assert all((Kind.DATABASE_CLOCK in kinds) is not bool(ROLLBACKS & kinds) for kinds in drawn_kinds)
    assert {Kind.DATABASE_CLOCK in kinds for kinds in drawn_kinds} == {True, False}


@pytest.mark.parametrize("store", StoreKind)
def test_faults_come_in_storms_as_often_as_they_should_and_end_in_time(store: StoreKind) -> None:
    for seed in range(20):
        schedule = _draw(seed, store)
        assert 0.4 < len(schedule.faults) / schedule.seconds < 0.9
        storms = [phase for phase in schedule.phases if phase.is_storm]
        for fault in schedule.faults:
            assert any(storm.at <= fault.at < storm.until for storm in storms)
            assert fault.at + fault.lasting <= schedule.seconds + 0.01
            assert SORTS[fault.kind].shortest_s <= fault.lasting + 0.001


@pytest.mark.parametrize("store", StoreKind)
def test_one_fault_at_a_time_befalls_a_player_its_link_or_the_database_and_someone_always_acts(
    store: StoreKind,
) -> None:
    for seed in range(20):
        busy: dict[tuple[Lane, str], float] = defaultdict(float)
        away: dict[str, float] = {}
        for fault in _draw(seed, store).faults:
            place = lane_of(fault.kind, store), fault.node
            assert busy[place] <= fault.at
            busy[place] = fault.at + fault.lasting
            if SORTS[fault.kind].is_away:
                away[fault.node] = fault.at + fault.lasting
                assert sum(until > fault.at for until in away.values()) <= len(_NODES) - 2


@pytest.mark.parametrize("store", StoreKind)
def test_all_faults_come_unless_some_are_chosen(store: StoreKind) -> None:
    usual = _draw(7, store)
    assert usual == draw_schedule(7, 180.0, store, _NODES, frozenset(Kind))
    assert usual.is_compacting
    some = draw_schedule(7, 180.0, store, _NODES, frozenset((Kind.STORE_BACK, Kind.KILL)))
    assert {fault.kind for fault in some.faults} == {Kind.STORE_BACK, Kind.KILL}
    assert not some.is_compacting


def test_kinds_are_chosen_by_name_or_by_a_word_for_many() -> None:
    usual = frozenset(Kind) - {Kind.PAUSE}
    assert select_kinds(None, Kind, usual) == usual
    assert select_kinds(["all"], Kind, usual) == frozenset(Kind)
    assert select_kinds(["optional", "kill"], Kind, usual) == {Kind.PAUSE, Kind.KILL}
    assert {"default", "optional", "kill"} <= set(choices_of(Kind, usual))
    assert "optional" not in choices_of(Kind, DEFAULT_FAULTS)
