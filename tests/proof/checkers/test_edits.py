"""The checks of edits: each finds what it is for, in a history that is made up."""

from __future__ import annotations

from typing import Any, Final

import pytest

from proof.checkers.edits import EDIT_CHECKS
from proof.editing.commit_witness import NOTE
from proof.history import Step
from tests.proof.checkers.story import Story, faults

_PATH: Final = "src/a.txt"
_HELD: Final = "vox-mesh denied it: lock of agent ben until 2026-11-18T15:17:32.618Z; wait for it"


def _lock(agent: str, **more: Any) -> dict[str, Any]:
    until = "2026-01-01T00:00:10.000Z"
    lock = {"lock_key": f"file:{_PATH}", "holder_agent": agent, "fence_token": 1, "expires_at": until}
    return lock | more


def _commit(story: Story, author: str, *locks: dict[str, Any], marks: tuple[str, ...] = ()) -> None:
    at_ms = 1_767_225_600_000  # 2026-01-01T00:00:00Z
    story.node("git").note(NOTE, commit="c", locks=[*locks], at_ms=at_ms)
    story.node("stage").note("committed", commit="c", author=author, paths=[_PATH], marks=[*marks])


@pytest.mark.parametrize(
    ("locks", "is_right"),
    [
        ((_lock("ann"),), True),
        ((_lock("ann", lock_key="file:src/**"),), True),
        ((_lock("ann"), _lock("ben", lock_key="file:docs/b")), True),
        ((), False),
        ((_lock("ben"),), False),
        ((_lock("ann"), _lock("ben", lock_key="file:src/**")), False),
        ((_lock("ann", lock_key="file:src/b.txt"),), False),
        ((_lock("ann", expires_at="2025-12-31T23:59:59.999Z"),), False),
    ],
)
def test_a_commit_needs_a_lock_of_its_author_alone_in_force(
    locks: tuple[dict[str, Any], ...], is_right: bool
) -> None:
    story = Story()
    _commit(story, "ann", *locks)
    assert (faults(EDIT_CHECKS, "edits-under-locks", story) == []) == is_right


def test_a_commit_that_was_not_witnessed_is_found() -> None:
    story = Story()
    story.node("stage").note("committed", commit="c", author="ann", paths=[_PATH], marks=[])
    assert faults(EDIT_CHECKS, "edits-under-locks", story) != []


@pytest.mark.parametrize(
    ("allowed", "author", "is_right"), [(True, "ann", True), (False, "ann", False), (True, "ben", False)]
)
def test_an_edit_is_committed_only_if_it_was_allowed_and_by_who_made_it(
    allowed: bool, author: str, is_right: bool
) -> None:
    story = Story()
    story.node("ann").note("edit", path=_PATH, mark="ann.1.1", allowed=allowed)
    _commit(story, author, marks=("ann.1.1",))
    assert (faults(EDIT_CHECKS, "only-allowed-committed", story) == []) == is_right


@pytest.mark.parametrize(
    ("allowed", "step", "is_right"), [(True, Step.OK, True), (True, Step.NO, False), (False, Step.NO, True)]
)
def test_what_the_hook_allowed_the_guard_must_let_in(allowed: bool, step: Step, is_right: bool) -> None:
    story = Story()
    story.node("ann").note("edit", path=_PATH, mark="ann.1.1", allowed=allowed)
    story.did("ann", "commit", {"path": _PATH}, step)
    assert (faults(EDIT_CHECKS, "hook-and-guard-agree", story) == []) == is_right


@pytest.mark.parametrize(
    ("via", "text", "is_right"),
    [
        ("hook", _HELD, True),
        ("hook", _HELD.replace("ben", "someone"), False),
        ("hook", _HELD.replace("2026-11-18T15:17:32.618Z", "later"), False),
        ("hook", _HELD.replace("; wait for it", ""), False),
        ("mcp", f"lock_held: {_HELD}", True),
        ("mcp", f"Oh, {_HELD}", False),
        ("guard", "1 path is not locked by ann; acquire it first: vox-mesh lock acquire file:a", True),
        ("guard", "1 path is not locked by ann", False),
    ],
)
def test_a_refusal_names_the_holder_the_expiry_and_an_action(via: str, text: str, is_right: bool) -> None:
    story = Story()
    for name in ("ann", "ben"):
        story.node(name).note("hook", path=_PATH, denied=True)
    story.node("ann").note("refusal", via=via, path=_PATH, text=text)
    assert (faults(EDIT_CHECKS, "refusals-explained", story) == []) == is_right


@pytest.mark.parametrize(("state", "is_right"), [("acked", True), ("claimed", False), (None, False)])
def test_every_message_must_be_acknowledged(state: str | None, is_right: bool) -> None:
    story = Story()
    story.node("ann").note("sent", id="m", to="ben")
    if state is not None:
        story.final("a2a_messages", message_uuid="m", state=state)
    assert (faults(EDIT_CHECKS, "mail-acknowledged", story) == []) == is_right


@pytest.mark.parametrize(
    ("taken", "token", "is_right"), [(_PATH, 2, True), (_PATH, 1, False), ("src/b.txt", 2, False)]
)
def test_another_agent_must_edit_what_was_left_locked_under_a_higher_token(
    taken: str, token: int, is_right: bool
) -> None:
    story = Story()
    story.node("stage").note("left-behind", path=_PATH, token=1, left_s=500.0)
    story.did("ann", "lock", {"path": taken}, token=token)
    story.node("ann").note("taken-over", path=taken)
    assert (faults(EDIT_CHECKS, "left-locks-end", story) == []) == is_right


@pytest.mark.parametrize(
    ("status", "text", "is_right"),
    [
        (2, "<untrusted-1 from ben>hello</untrusted-1>", True),
        (0, "<untrusted-1 from ben>hello</untrusted-1>", False),
        (2, "ben says hello", False),
        (2, "<untrusted-1>hello</untrusted-1>", False),
    ],
)
def test_a_waiter_must_wake_its_agent_with_fenced_text(status: int, text: str, is_right: bool) -> None:
    story = Story()
    story.node("ben").note("sent", id="m", to="ann")
    story.node("ann").note("woken", status=status, text=text)
    assert (faults(EDIT_CHECKS, "idle-are-woken", story) == []) == is_right


def test_an_agent_that_ends_with_an_error_is_found() -> None:
    story = Story()
    story.node("stage").note("unexpected", who="ann", status=1, log="KeyError: 'held'")
    assert faults(EDIT_CHECKS, "agents-end-well", story) == ["ann ended with 1: KeyError: 'held'"]
