"""Window keys: good within their bars and for what they were made for, and not otherwise."""

from __future__ import annotations

import base64
import string
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.rhythm.tempo import Window
from vox_mesh.model.rhythm.window_keys import (
    LONGEST_WINDOW_MS,
    MARK,
    MAX_LATE_MS,
    MAX_WINDOW_MS,
    RELAY,
    WindowKeyFault,
    check,
    issue,
    window_of_key,
)

_SECRET: Final = "a-token-that-no-one-may-read"
_PROJECT: Final = ("acme", "shop")
_BAR: Final = Window(1_000_000, 1_040_000)
_WRITABLE: Final = string.ascii_letters + string.digits + "-_.=+/ ~é"

_starts = st.integers(-(10**12), 10**14)
_lengths = st.integers(1, MAX_WINDOW_MS)
_texts = st.text(max_size=30)


def _fault(key: str, now_ms: int = _BAR.start_ms, **changes: Any) -> WindowKeyFault | None:
    asked: dict[str, Any] = {"secret": _SECRET, "project": _PROJECT, "role": RELAY, "revoke_after_bars": 1}
    return check(token=key, now_ms=now_ms, **(asked | changes))


@given(_starts, _lengths, st.integers(0, 10), st.integers(-30, 30), st.integers(-1, 1))
def test_a_key_is_good_from_one_bar_before_its_own_until_this_many_after(
    start_ms: int, length_ms: int, bars: int, away_bars: int, away_ms: int
) -> None:
    key = issue(_SECRET, _PROJECT, RELAY, Window(start_ms, start_ms + length_ms))
    now_ms = start_ms + away_bars * length_ms + away_ms
    expected = None
    if now_ms < start_ms - length_ms:
        expected = WindowKeyFault.EARLY
    elif now_ms >= start_ms + length_ms + min(bars * length_ms, MAX_LATE_MS):
        expected = WindowKeyFault.STALE
    assert _fault(key, now_ms, revoke_after_bars=bars) is expected


@given(_starts, st.integers(1, LONGEST_WINDOW_MS), st.data())
def test_the_window_of_a_key_is_short_and_within_its_bar(
    start_ms: int, length_ms: int, data: st.DataObject
) -> None:
    bar = Window(start_ms, start_ms + length_ms)
    now_ms = data.draw(st.integers(bar.start_ms, bar.end_ms - 1))
    window = window_of_key(bar, now_ms)
    assert bar.start_ms <= window.start_ms <= now_ms < window.end_ms <= bar.end_ms
    assert window.end_ms - window.start_ms <= MAX_WINDOW_MS
    assert _fault(issue(_SECRET, _PROJECT, RELAY, window), now_ms, revoke_after_bars=0) is None


def test_a_longer_window_is_stale_at_all_times() -> None:
    key = issue(_SECRET, _PROJECT, RELAY, Window(0, MAX_WINDOW_MS + 1))
    assert _fault(key, 0) is WindowKeyFault.STALE


@given(st.data())
def test_with_any_character_changed_added_or_left_out_it_is_wrong(data: st.DataObject) -> None:
    key = issue(_SECRET, _PROJECT, RELAY, _BAR)
    at = data.draw(st.integers(0, len(key) - 1))
    other = data.draw(st.sampled_from(_WRITABLE).filter(lambda each: each != key[at]))
    assert _fault(key) is None
    assert _fault(key[:at] + other + key[at + 1 :]) is WindowKeyFault.WRONG
    assert _fault(key[:at] + other + key[at:]) is WindowKeyFault.WRONG
    assert _fault(key[:at] + key[at + 1 :]) is WindowKeyFault.WRONG


@given(_texts, _texts, _texts, _texts)
def test_it_is_for_its_project_and_role_alone(scope: str, repository: str, role: str, secret: str) -> None:
    own = (scope, repository)
    key = issue(_SECRET, own, role, _BAR)
    assert _fault(key, project=own, role=role) is None
    assert _fault(key, project=(scope + "x", repository), role=role) is WindowKeyFault.PROJECT
    assert _fault(key, project=(scope, repository + "x"), role=role) is WindowKeyFault.PROJECT
    assert _fault(key, project=(scope + repository, ""), role=role) in (
        (None,) if not repository else (WindowKeyFault.PROJECT,)
    )
    assert _fault(key, project=own, role=role + "x") is WindowKeyFault.ROLE
    if secret != _SECRET:
        assert _fault(key, project=own, role=role, secret=secret) is WindowKeyFault.WRONG


@given(_texts)
def test_whatever_is_no_key_is_wrong_and_no_error(text: str) -> None:
    assert _fault(text) is WindowKeyFault.WRONG
    assert _fault(MARK + text) is WindowKeyFault.WRONG


@pytest.mark.parametrize(
    ("start_ms", "end_ms"),
    [(5, 5), (5, 4), (0, LONGEST_WINDOW_MS + 1), (True, 5), (0.5, 5), (None, 5), ("0", 5)],
)
def test_what_is_no_bar_is_refused_no_matter_who_signed_it(start_ms: Any, end_ms: Any) -> None:
    honest = issue(_SECRET, _PROJECT, RELAY, Window(0, 5))
    assert _fault(honest, 0) is None
    assert _fault(issue(_SECRET, _PROJECT, RELAY, Window(start_ms, end_ms)), 0) is WindowKeyFault.WRONG


def test_another_version_is_refused() -> None:
    said = canonical(
        {"version": 2, "scope": "acme", "repository": "shop", "role": RELAY, "start_ms": 0, "end_ms": 5}
    )
    fields = base64.urlsafe_b64encode(said.encode()).rstrip(b"=").decode()
    assert _fault(f"{MARK}{fields}.{'A' * 43}", 0) is WindowKeyFault.WRONG


def test_a_key_can_stand_in_a_header_and_tells_nothing_of_the_token() -> None:
    key = issue(_SECRET, ("ä scope", "a\nrepository"), RELAY, _BAR)
    assert set(key) <= set(string.ascii_letters + string.digits + "-_.")
    assert _SECRET not in key
    assert len(key) < 512


def test_the_text_of_a_key_stays_unchanged() -> None:
    fields = (
        "eyJlbmRfbXMiOjQwMDAwLCJyZXBvc2l0b3J5IjoiciIsInJvbGUiOiJyZWxh"
        "eSIsInNjb3BlIjoicyIsInN0YXJ0X21zIjowLCJ2ZXJzaW9uIjoxfQ"
    )
    proof = "2dfm22UnvsbbXDjvvZJKBEuxH7VF5XIsXpsuW9uH7bc"  # by RFC 5869 and RFC 2104, by hand
    assert issue("secret", ("s", "r"), RELAY, Window(0, 40_000)) == f"vxw1.{fields}.{proof}"
