"""Which paths another agent holds: exact for every name that a file can have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model.locks.test_patterns import matcher
from tests.support.running.examples import many
from vox_mesh.locks.path_guard import obstacles, unlocked
from vox_mesh.model.locks.records import Holder

names = st.text("ab*?", min_size=1, max_size=4)
real_paths = st.lists(names, min_size=1, max_size=4).map("/".join)
patterns = st.lists(names | st.just("**"), min_size=1, max_size=4).map("/".join)


def held(key: str, agent: str = "rival", *, token: int = 1, node: str = "n", shared: bool = False) -> Holder:
    """A hold of the key."""
    return Holder(
        lock_key=key,
        fence_token=token,
        holder_node=node,
        holder_agent=agent,
        is_shared=shared,
        acquired_at="2026-01-01T00:00:00.000Z",
        expires_at="2026-01-01T00:00:30.000Z",
        request_id=f"request {token}",
        waiting=0,
        now_ms=1_767_225_600_000,
    )


def in_the_way(path: str, *keys: str) -> list[str]:
    """Which of the keys, held by a rival, are in the way of a path."""
    return [found.holder.lock_key for found in obstacles([path], map(held, keys), "me")]


@many
@given(st.lists(real_paths, max_size=6, unique=True), st.sets(patterns, max_size=20))
def test_a_path_is_compared_as_it_stands_whatever_its_name(paths: list[str], keys: set[str]) -> None:
    found = obstacles(paths, [held(f"file:{key}") for key in keys], "me")
    assert [(each.path, each.holder.lock_key) for each in found] == [
        (path, f"file:{key}") for path in paths for key in sorted(keys) if matcher(key)(path)
    ]


def test_a_wildcard_in_the_name_of_a_file_is_a_character_like_any_other() -> None:
    assert in_the_way("a*c", "file:abc", "file:a*c", "file:a?c", "file:axc") == ["file:a*c", "file:a?c"]
    assert in_the_way("**", "file:a/b", "file:*", "file:x") == ["file:*"]
    assert in_the_way("[ab]", "file:a", "file:[ab]") == ["file:[ab]"]


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31m", "caf\udce9", "x" * 5_000, "-n", "a  b", '"', "日本"])
def test_a_file_that_can_have_no_key_of_its_own_is_held_with_its_folder(name: str) -> None:
    assert in_the_way(f"src/{name}", "file:src/**", "file:lib/**", "file:src") == ["file:src/**"]


def test_a_folder_stands_for_itself_and_all_that_is_in_it() -> None:
    keys = ("file:src", "file:src/a/b", "file:src/*.py", "file:srcs", "file:lib/a", "file:*/a/b")
    assert in_the_way("src/", *keys) == ["file:*/a/b", "file:src", "file:src/*.py", "file:src/a/b"]
    assert in_the_way("./", *keys) == sorted(keys)
    assert in_the_way("s*c/", *keys) == ["file:*/a/b"]


def test_holds_of_the_agent_itself_are_not_in_its_way_on_any_node() -> None:
    holders = [held("file:a", "me", node="elsewhere"), held("file:a", "rival", shared=True, token=2)]
    assert [each.holder.fence_token for each in obstacles(["a"], holders, "me")] == [2]


def test_everyone_who_shares_a_key_is_named_and_each_path_once() -> None:
    holders = [
        held("file:a", agent, shared=True, token=token) for token, agent in enumerate(("x", "me", "y"))
    ]
    found = obstacles(["a", "b", "a"], holders, "me")
    assert [(each.path, each.holder.holder_agent) for each in found] == [("a", "x"), ("a", "y")]


@many
@given(st.lists(real_paths, max_size=6, unique=True), st.sets(patterns, max_size=6))
def test_a_path_is_locked_if_a_lock_of_ones_own_covers_it(paths: list[str], keys: set[str]) -> None:
    mine = [held(f"file:{key}", agent="me") for key in keys]
    others = [held("file:**"), held("file:**", agent="me", shared=True), held("task:**", agent="me")]
    free = [path for path in paths if not any(matcher(key)(path) for key in keys)]
    assert unlocked(paths, [*mine, *others], "me") == free


def test_a_folder_is_locked_only_with_everything_in_it() -> None:
    for key in ("src/**", "s?c/**", "**", "src/deep/**"):
        assert unlocked(["src/deep/"], [held(f"file:{key}", agent="me")], "me") == []
    for key in ("src", "src/deep", "src/*", "src/deep/*", "src/**/a", "sr/**", "src/deep/er/**"):
        assert unlocked(["src/deep/"], [held(f"file:{key}", agent="me")], "me") == ["src/deep/"]


def test_keys_that_are_no_files_are_never_in_the_way() -> None:
    assert in_the_way("a", "a", "task:a", "mesh:sweep", "task:*") == []
