"""What the judges of locks find, and what they have nothing against."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proof import tables
from proof.checkers.lock_model import Kind, LockAction, lock_fault
from proof.checkers.locks import LOCK_CHECKS, NOTICED_S, SETTLED
from proof.history import Step
from proof.judge import evaluate_all
from proof.workloads.locks import LOCKS
from tests.proof.calm import run_calmly
from tests.proof.checkers.timed import Lines, did, faults, final, noted

_TTL_S = 1.0
_KEY = "task:deploy"
_FILE, _FOLDER = "file:src/app.py", "file:src/**"


def _about(token: int, *keys: str, **more: Any) -> dict[str, Any]:
    return {"keys": list(keys or (_KEY,)), "token": token, "ttl": _TTL_S, **more}


def _took(who: str, began: float, ended: float, token: int, *keys: str) -> Lines:
    args = {"keys": list(keys or (_KEY,)), "ttl": _TTL_S, "wait": 0.0}
    return did(who, "lock.take", (began, ended), args, token=token)


def _asked_in_vain(who: str, began: float, step: Step, ended: float = math.inf) -> Lines:
    return did(who, "lock.take", (began, ended), {"keys": [_KEY], "ttl": _TTL_S, "wait": 0.0}, step)


def _released(who: str, began: float, ended: float, token: int, step: Step = Step.OK, **result: Any) -> Lines:
    return did(who, "lock.release", (began, ended), _about(token), step, **result)


def _put(who: str, at: float, token: int, highest: int = 0, *, is_taken: bool = True) -> Lines:
    """A write outside of the database."""
    lines = noted(who, "outside.write", at, key=_KEY, token=token, highest=highest, taken=is_taken)
    return lines + did(who, "lock.put", (at - 0.01, at + 0.01), _about(token, cell=_KEY), taken=is_taken)


def _wrote(who: str, began: float, token: int, step: Step = Step.OK, **result: Any) -> Lines:
    args = _about(token, cell=_KEY)
    return did(who, "lock.write", (began, began + 0.1), args, step, **result)


def _looked(began: float, *tokens: int) -> Lines:
    return did("eve", "lock.look", (began, began + 0.1), {"keys": [_KEY]}, tokens=list(tokens))


def _found(name: str, *lines: Lines) -> list[str]:
    return faults(LOCK_CHECKS, name, *lines)


ONE_AFTER_ANOTHER = [_took("ada", 0.0, 0.1, 5), _released("ada", 0.3, 0.4, 5), _took("bob", 0.35, 0.5, 6)]


# --- tokens ------------------------------------------------------------------------------------------


def test_tokens_may_rise_and_those_of_grants_at_the_same_time_may_come_in_any_order() -> None:
    assert _found("tokens-rise", *ONE_AFTER_ANOTHER) == []
    assert _found("tokens-rise", _took("ada", 0.0, 2.0, 6), _took("bob", 0.1, 0.5, 5)) == []
    assert _found("tokens-rise", _took("ada", 0.0, 0.1, 6), _took("bob", 2.0, 2.1, 6, _FILE)) == []


def test_a_token_that_falls_or_comes_twice_is_found_also_where_only_a_pattern_is_in_common() -> None:
    assert _found("tokens-rise", _took("ada", 0.0, 0.1, 6), _took("bob", 2.0, 2.1, 5))
    assert _found("tokens-rise", _took("ada", 0.0, 2.0, 6), _took("bob", 0.1, 0.5, 6))
    both = _took("ada", 0.0, 0.1, 6, _FOLDER), _took("bob", 2.0, 2.1, 5, _FILE)
    assert _found("tokens-rise", *both)


# --- outside -----------------------------------------------------------------------------------------


def test_the_outside_may_take_the_newest_and_refuse_who_is_late() -> None:
    late = _put("ada", 1.5, 5, 6, is_taken=False)
    assert (
        _found(
            "outside-takes-no-older", *ONE_AFTER_ANOTHER, _put("ada", 0.2, 5), _put("bob", 0.6, 6, 5), late
        )
        == []
    )


@pytest.mark.parametrize(
    "lines",
    {
        "an older token": [
            _took("ada", 0.0, 0.1, 5),
            _took("bob", 1.2, 1.3, 6),
            _put("bob", 1.4, 6),
            _put("ada", 1.5, 5),
        ],
        "a token that it saw to be older": [_took("ada", 0.0, 0.1, 5), _put("ada", 0.2, 5, 6)],
        "a token of no one": [_took("ada", 0.0, 0.1, 5), _put("ada", 0.2, 7)],
        "the token of another": [_took("ada", 0.0, 0.1, 5), _put("bob", 0.2, 5)],
        "not who holds it": [_took("ada", 0.0, 0.1, 5), _put("ada", 0.5, 5, 6, is_taken=False)],
    }.values(),
)
def test_what_the_outside_must_not_take_or_refuse_is_found(lines: list[Lines]) -> None:
    assert _found("outside-takes-no-older", *lines)


# --- each key ----------------------------------------------------------------------------------------


def _renewed_in_vain(error: str) -> Lines:
    return did("ada", "lock.renew", (0.2, 0.3), _about(5), Step.NO, error=error)


POSSIBLE = {
    "a holder that was killed": [_took("ada", 0.0, 0.1, 5), _took("bob", 1.0, 1.2, 6)],
    "a release that was cut off": [
        *(_took("ada", 0.0, 0.1, 5), _released("ada", 0.2, math.inf, 5)),
        _took("bob", 0.3, 0.4, 6),
    ],
    "a grant that no caller got an answer for": [
        *(_asked_in_vain("ada", 0.0, Step.UNKNOWN), _looked(0.2, 4)),
        _took("bob", 1.1, 1.3, 5),
    ],
    "a release after a lost answer": [
        *(_took("ada", 0.0, 0.1, 5), _released("ada", 0.2, 2.0, 5, Step.NO, was_held=False)),
        _took("bob", 0.3, 0.4, 6),
    ],
    "a renewal after a lost answer": [
        _took("ada", 0.0, 0.1, 5),
        *(did("ada", "lock.renew", (0.5, 3.0), _about(5), Step.NO, error="StaleFence"), _looked(1.2, 5)),
    ],
    "a renewal that was never sent": [
        _took("ada", 0.0, 0.1, 5),
        *(_renewed_in_vain("Unreachable"), _wrote("ada", 0.4, 5)),
    ],
    "a renewal whose copy came before the node's next life": [
        *(_took("ada", 0.0, 0.1, 5), _renewed_in_vain("StaleIncarnation"), _looked(1.2, 5)),
    ],
    "kept, and released after that": [
        *(_took("ada", 0.0, 0.1, 5), noted("ada", "lock.kept", 0.5, **_about(5))),
        *(_wrote("ada", 0.2, 5), _took("bob", 0.5, 0.6, 6)),
    ],
    "refused while another holds it": [
        *(_took("ada", 0.0, 0.1, 5), _asked_in_vain("bob", 0.2, Step.NO, 0.3), _looked(0.4, 5)),
    ],
}

IMPOSSIBLE = {
    "two at once": [_took("ada", 0.0, 0.1, 5), _took("bob", 0.5, 0.6, 6)],
    "two seen at once": [_took("ada", 0.0, 0.1, 5), _looked(0.2, 5, 6)],
    "kept, and taken before that": [
        *(_took("ada", 0.0, 0.1, 5), noted("ada", "lock.kept", 0.8, **_about(5))),
        _took("bob", 0.5, 0.6, 6),
    ],
    "written under it when it was over": [_took("ada", 0.0, 0.1, 5), _wrote("ada", 1.2, 5)],
    "refused under it while it was held": [
        *(_took("ada", 0.0, 0.1, 5), _wrote("ada", 0.3, 5, Step.NO, error="StaleFence")),
    ],
    "held by a renewal that was never sent": [
        *(_took("ada", 0.0, 0.1, 5), _renewed_in_vain("Unreachable"), _looked(1.2, 5)),
    ],
    "a pattern while a file of it is held": [
        _took("ada", 0.0, 0.1, 5, _FILE),
        _took("bob", 0.5, 0.6, 6, _FOLDER),
    ],
}


@pytest.mark.parametrize("name", POSSIBLE)
def test_what_can_have_been_reported_of_a_lock_passes(name: str) -> None:
    assert _found("locks-linearizable", *POSSIBLE[name]) == []


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_can_not_have_been_reported_of_a_lock_is_found(name: str) -> None:
    assert _found("locks-linearizable", *IMPOSSIBLE[name])


def _long(rounds: int) -> Iterator[LockAction]:
    """Many want one lock, and look at it, all the time; now and then a renewal or a release gets lost."""
    for n in range(rounds):
        at, token = float(n), n + 1
        yield LockAction(Kind.ACQUIRE, Step.OK, at - 3, at + 0.2, token, 30.0)
        for look in range(4):
            yield LockAction(Kind.LOOK, Step.OK, at + 0.2 + look / 100, at + 0.5, token)
        if n % 7:
            yield LockAction(Kind.RENEW, Step.OK, at + 0.3, at + 0.6, token, 30.0)
        else:
            yield LockAction(Kind.RENEW, Step.UNKNOWN, at + 0.3, math.inf, token, 30.0)
        if n % 10:
            yield LockAction(Kind.RELEASE, Step.OK, at + 0.7, at + 0.9, token)
        else:
            yield LockAction(Kind.RELEASE, Step.UNKNOWN, at + 0.7, math.inf, token)


def test_a_long_history_of_one_lock_is_judged_and_a_fault_at_its_end_is_found() -> None:
    actions = list(_long(500))
    assert lock_fault(actions) is None
    last = actions[-1].ended
    assert lock_fault([*actions, LockAction(Kind.WRITE, Step.OK, last + 0.1, last + 0.2, 500)])


def test_a_history_that_is_too_much_to_be_explained_is_reported_as_a_fault() -> None:
    unknown = [
        LockAction(Kind.RENEW, Step.UNKNOWN, 0.2 + n / 1_000, math.inf, 5, 100.0 + n) for n in range(30)
    ]
    taken = LockAction(Kind.ACQUIRE, Step.OK, 0.0, 0.1, 5, 100.0)
    fault = lock_fault([taken, *unknown, LockAction(Kind.ACQUIRE, Step.OK, 50.0, 50.1, 6, 100.0)])
    assert fault is not None
    assert "too many" in fault


# --- under the guard ---------------------------------------------------------------------------------


def _row(token: int, node: str = "ada") -> dict[str, Any]:
    return {"cell": _KEY, "token": token, "player": node}


def test_what_was_written_under_a_lock_is_compared_with_what_was_reported() -> None:
    wrote = [_wrote("ada", 0.1, 5), _wrote("ada", 0.3, 5, Step.UNKNOWN), _wrote("ada", 2.0, 5, Step.NO)]
    there = final(tables.GUARDED, _row(5))
    assert _found("guarded-in-order", *wrote, there) == []
    assert _found("guarded-in-order", *wrote, there, there) == []
    assert _found("guarded-in-order", *wrote, there, there, there)
    assert _found("guarded-in-order", *wrote, final(tables.GUARDED))
    later = [_wrote("bob", 3.0, 6), final(tables.GUARDED, _row(6, "bob"), _row(5))]
    assert _found("guarded-in-order", *wrote, *later)


# --- the workload ------------------------------------------------------------------------------------


def test_a_calm_run_of_locks_breaks_no_promise(tmp_path: Path) -> None:
    history = run_calmly(tmp_path, LOCKS, seconds=120.0)
    said = evaluate_all(history)
    assert [str(each) for each in said if not each.holds] == []
    looks = {each.name: each.looks for each in said}
    assert all(looks[check.name] > 10 for check in LOCK_CHECKS), looks


# --- when the database's clock is set ------------------------------------------------------------------


def test_a_hold_may_last_until_it_is_noticed_that_the_clock_was_set_and_no_longer() -> None:
    stepped = noted("stage", "database.clock", 0.5, ahead_ms=-3_600_000)
    taken = _took("ada", 0.0, 0.1, 5)
    assert _found("locks-linearizable", taken, _wrote("ada", 3.0, 5))
    assert _found("locks-linearizable", stepped, taken, _wrote("ada", 3.0, 5)) == []
    assert _found("locks-linearizable", stepped, taken, _wrote("ada", 0.2 + _TTL_S + NOTICED_S, 5))
    assert _found("locks-linearizable", stepped, taken, _looked(0.2 + _TTL_S + NOTICED_S, 5))


def test_what_is_read_before_a_step_is_noticed_may_be_off() -> None:
    stepped = noted("stage", "database.clock", 0.2, ahead_ms=3_600_000)
    assert _found("locks-linearizable", _took("ada", 0.0, 0.1, 5), _looked(0.3))
    assert _found("locks-linearizable", stepped, _took("ada", 0.0, 0.1, 5), _looked(0.3)) == []


def test_what_is_read_may_be_off_until_the_nodes_have_agreed_on_a_step() -> None:
    stepped = noted("stage", "database.clock", 0.2, ahead_ms=3_600_000)
    taken, late = _took("ada", 0.0, 0.1, 5), _looked(0.3 + 2 * NOTICED_S, 5)
    assert _found("locks-linearizable", stepped, taken, late)
    assert _found("locks-linearizable", stepped, taken, late, noted("stage", SETTLED, 0.4)), "it was before"
    assert _found("locks-linearizable", stepped, taken, late, noted("stage", SETTLED, 3 * NOTICED_S)) == []


def test_a_hold_that_ends_early_because_the_clock_was_set_is_found() -> None:
    stepped = noted("stage", "database.clock", 0.2, ahead_ms=3_600_000)
    assert _found("locks-linearizable", stepped, _took("ada", 0.0, 0.1, 5), _took("bob", 0.3, 0.4, 6))
