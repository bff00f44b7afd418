"""The pace of looks: the ones for one message do not delay the next, and a busy mesh is looked at rarely."""

from __future__ import annotations

from vox_mesh.messages.wakeups import LookPace


def _rests(gaps_s: list[float]) -> list[bool]:
    """Look again after each of these times; return after which looks there is a rest."""
    pace, now, rests = LookPace(), 0.0, []
    for gap_s in gaps_s:
        now += gap_s
        pace.note(now)
        rests.append(pace.rest_s(now) > 0)
    return rests


def test_the_looks_of_one_message_do_not_delay_the_next() -> None:
    message = [0.006, 0.001, 0.001]
    assert not any(_rests(message * 5))


def test_while_there_are_commits_all_the_time_looks_have_pauses() -> None:
    assert all(_rests([0.0] * 3 + [0.002, 0.003] * 10)[3:])


def test_a_rest_is_over_two_milliseconds_after_the_look() -> None:
    pace = LookPace()
    for _ in range(4):
        pace.note(7.0)
    assert 0 < pace.rest_s(7.0) <= 0.002
    assert pace.rest_s(7.002) == 0.0
