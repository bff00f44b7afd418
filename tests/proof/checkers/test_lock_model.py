"""The checker of histories: it lets pass what can have been, and finds what can't."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proof.checkers import lock_model
from proof.checkers.lock_model import Kind, LockAction, lock_fault
from proof.history import Step

_TTL_S = 1.0


def _did(kind: Kind, began: float, ended: float, token: int | None, step: Step = Step.OK) -> LockAction:
    return LockAction(kind, step, began, ended, token, _TTL_S)


def _acquired(token: int, began: float, ended: float) -> LockAction:
    return _did(Kind.ACQUIRE, began, ended, token)


_HELD = _acquired(5, 0.0, 0.1)
_NEVER_TOLD = LockAction(Kind.ACQUIRE, Step.UNKNOWN, 0.0, ttl=_TTL_S)

_POSSIBLE = {
    "one after another": [_HELD, _did(Kind.RELEASE, 0.2, 0.3, 5), _acquired(6, 0.4, 0.5)],
    "released while another asks": [_HELD, _did(Kind.RELEASE, 0.2, 0.6, 5), _acquired(6, 0.3, 0.4)],
    "taken at its end": [_HELD, _acquired(6, 0.9, 1.05)],
    "renewed, then taken at its end": [_HELD, _did(Kind.RENEW, 0.5, 0.6, 5), _acquired(6, 1.0, 1.6)],
    "a renewal that no one knows of": [
        *(_HELD, _did(Kind.RENEW, 0.5, math.inf, 5, Step.UNKNOWN)),
        _did(Kind.WRITE, 1.4, 1.45, 5),
    ],
    "renewals that no one knows of, one of which came late": [
        *(_HELD, *(_did(Kind.RENEW, 0.1 + n / 100, math.inf, 5, Step.UNKNOWN) for n in range(40))),
        *(_did(Kind.WRITE, 1.05 + n / 2, 1.1 + n / 2, 5) for n in range(8)),
    ],
    "a release that no one knows of": [
        *(_HELD, _did(Kind.RELEASE, 0.5, math.inf, 5, Step.UNKNOWN)),
        _acquired(6, 0.6, 0.7),
    ],
    "too late, and notified": [_HELD, _acquired(6, 1.2, 1.3), _did(Kind.WRITE, 1.4, 1.5, 5, Step.NO)],
    "a write that took until after the end": [_HELD, _did(Kind.WRITE, 0.5, 3.0, 5), _acquired(6, 1.2, 1.3)],
    "seen while it was held, and after": [
        *(_HELD, _did(Kind.LOOK, 0.5, 0.6, 5)),
        *(_did(Kind.RELEASE, 0.7, 0.8, 5), _did(Kind.LOOK, 0.7, 0.8, None)),
    ],
    "held by one who does not know it": [_NEVER_TOLD, _did(Kind.LOOK, 0.5, 0.6, 3), _acquired(5, 1.0, 1.1)],
}

_IMPOSSIBLE = {
    "more writes than renewals account for": [
        *(_HELD, *(_did(Kind.RENEW, 0.1 + n / 100, math.inf, 5, Step.UNKNOWN) for n in range(2))),
        *(_did(Kind.WRITE, 1.05 + n / 2, 1.1 + n / 2, 5) for n in range(8)),
    ],
    "two at once": [_HELD, _acquired(6, 0.2, 0.3)],
    "taken before its end": [_HELD, _acquired(6, 0.5, 0.9)],
    "renewed, and taken before its end": [_HELD, _did(Kind.RENEW, 0.5, 0.6, 5), _acquired(6, 1.2, 1.3)],
    "the same token twice": [_HELD, _did(Kind.RELEASE, 0.2, 0.3, 5), _acquired(5, 0.4, 0.5)],
    "tokens that fall": [_HELD, _did(Kind.RELEASE, 0.2, 0.3, 5), _acquired(4, 0.4, 0.5)],
    "written after the release": [_HELD, _did(Kind.RELEASE, 0.2, 0.3, 5), _did(Kind.WRITE, 0.4, 0.5, 5)],
    "written after its end": [_HELD, _did(Kind.WRITE, 1.2, 1.3, 5)],
    "written after a newer holder came": [_HELD, _acquired(6, 1.0, 1.2), _did(Kind.WRITE, 1.3, 1.4, 5)],
    "renewed after its end": [_HELD, _did(Kind.RENEW, 1.2, 1.3, 5)],
    "reported that it is over while it is not": [_HELD, _did(Kind.RENEW, 0.4, 0.5, 5, Step.NO)],
    "seen by no one while it was held": [_HELD, _did(Kind.LOOK, 0.4, 0.5, None)],
    "seen after its release": [_HELD, _did(Kind.RELEASE, 0.2, 0.3, 5), _did(Kind.LOOK, 0.4, 0.5, 5)],
    "held by one who never asked": [_HELD, _did(Kind.LOOK, 4.5, 4.6, 6)],
    "back after it was seen to be over": [
        _HELD,
        _did(Kind.LOOK, 0.9, 1.05, None),
        _did(Kind.WRITE, 1.06, 1.1, 5),
    ],
}


@st.composite
def _histories(draw: st.DrawFn) -> list[LockAction]:
    """A few holds, and some that was done to them, much of which no one knows of."""
    moments = st.integers(0, 40).map(lambda tenths: tenths / 10)
    done = [_HELD]
    for _ in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from([Kind.RENEW, Kind.RENEW, Kind.RELEASE, Kind.WRITE, Kind.ACQUIRE]))
        began = draw(moments)
        is_known = kind in (Kind.WRITE, Kind.ACQUIRE) or draw(st.booleans())
        ended = began + draw(moments) / 4 if is_known else math.inf
        step = Step.OK if is_known else Step.UNKNOWN
        done.append(_did(kind, began, ended, len(done) + 5 if kind is Kind.ACQUIRE else 5, step))
    return done


@given(_histories())
def test_what_does_the_same_need_not_be_tried_in_every_order(done: list[LockAction]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lock_model._Lock, "effect", lambda *_: None)
        whole = lock_fault(done)
    assert (lock_fault(done) is None) == (whole is None)


@pytest.mark.parametrize("name", _POSSIBLE)
def test_what_can_have_been_passes(name: str) -> None:
    assert lock_fault(_POSSIBLE[name]) is None


@pytest.mark.parametrize("name", _IMPOSSIBLE)
def test_what_can_not_have_been_is_found(name: str) -> None:
    assert lock_fault(_IMPOSSIBLE[name]) is not None
