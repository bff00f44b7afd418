"""Many keys held at once: the index answers as comparing with each of them would."""

from __future__ import annotations

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from tests.support.running.examples import many
from vox_mesh.model.locks.pattern_index import PatternIndex
from vox_mesh.model.locks.patterns import FILE, MAX_BYTES, overlap

names = st.text("ab", min_size=1, max_size=3)
segments = names | st.text("ab*?", min_size=1, max_size=4) | st.just("**")
file_keys = st.lists(segments, min_size=1, max_size=4).map(lambda path: FILE + "/".join(path))
path_keys = st.lists(names, min_size=1, max_size=4).map(lambda path: FILE + "/".join(path))
# More than are looked at one by one, all beginning alike, so that they are filed by their other runs.
crowded_keys = st.lists(segments, min_size=1, max_size=3).map(lambda path: f"{FILE}a/*" + "/".join(path))
keys = file_keys | path_keys | crowded_keys | st.sampled_from(["task:a", "task:*", "a", "file:a", "file:**"])


def all_that_overlap(held: set[str], key: str) -> list[str]:
    return sorted(other for other in held if overlap(other, key))


@many
@given(st.sets(keys, max_size=40), st.lists(keys, max_size=8))
def test_the_answer_is_what_comparing_with_each_key_would_give(held: set[str], asked: list[str]) -> None:
    index = PatternIndex(held)
    for key in chain(asked, held):
        assert index.matching(key) == all_that_overlap(held, key)
        assert index.overlapping(key) == all_that_overlap(held, key)


@many
@given(
    st.sets(crowded_keys, max_size=30),
    st.lists(crowded_keys, max_size=20),
    path_keys.map(lambda key: key.replace(FILE, "file:a/")),
)
def test_the_answer_follows_what_is_added(at_first: set[str], added: list[str], asked: str) -> None:
    index, held = PatternIndex(at_first), set(at_first)
    for key in added:
        index.add(key)
        held.add(key)
        assert index.matching(asked) == all_that_overlap(held, asked)


def test_a_key_added_twice_is_held_once() -> None:
    twice = ["file:a/**", "task:a", *(f"file:a/*{n}" for n in range(20))]
    index = PatternIndex([*twice, *twice])
    assert index.matching("file:a/x7") == ["file:a/**", "file:a/*7"]
    assert index.matching("task:a") == ["task:a"]


def test_a_path_too_long_to_be_a_key_is_still_found_under_its_folder() -> None:
    index = PatternIndex(["file:src/**", "file:lib/**"])
    assert index.matching("file:src/" + "x/" * MAX_BYTES + "y") == ["file:src/**"]
