"""Keys and path patterns: one way to write each, and an overlap that is exact and symmetric."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.running.examples import many
from tests.support.running.lengths import SOAK
from vox_mesh.errors import BadValue
from vox_mesh.model.locks.patterns import FILE, MAX_BYTES, is_pattern, key_covers, normalise, overlap

EXHAUSTIVE: Final = 4
"""Up to this length, every pattern is compared with every other."""

segments = st.text("ab*?", min_size=1, max_size=5) | st.sampled_from(["**", "*", "?", "a", "***", "a**b"])
paths = st.lists(segments, min_size=1, max_size=6).map("/".join)


def texts(alphabet: str, longest: int) -> Iterator[str]:
    """Every path or pattern over an alphabet, up to a length."""
    for length in range(1, longest + 1):
        for characters in product(alphabet, repeat=length):
            text = "".join(characters)
            if "//" not in text and not text.startswith("/") and not text.endswith("/"):
                yield text


def matcher(pattern: str) -> Callable[[str], Any]:
    """What the pattern means, said as a regular expression."""
    expression = ""
    for segment in pattern.split("/"):
        if segment == "**":
            expression += "(?:/[^/]+)*"
        else:
            meanings = {"*": "[^/]*", "?": "[^/]"}
            expression += "/" + "".join(
                meanings.get(character, re.escape(character)) for character in segment
            )
    compiled = re.compile(expression)
    return lambda path: compiled.fullmatch("/" + path)


State = tuple[int, int]


def steps_of(pattern: list[str], state: State, character: str) -> Iterator[State]:
    """Where an automaton of the pattern can be after one more character, at (segment, place in it).

    A place of -1 is before the slash that begins the segment.
    """
    at, place = state
    if at == len(pattern):
        return
    segment = pattern[at]
    if segment == "**":
        if place == -1:
            yield from steps_of(pattern, (at + 1, -1), character)  # no segment at all, or no more
            if character == "/":
                yield at, 0
        elif character != "/":
            yield from ((at, 0), (at, -1))  # within a name, and perhaps at its end
        return
    if place == -1:
        if character == "/":
            yield from ends_of(pattern, at, 0)
    elif place < len(segment) and character != "/":
        if segment[place] == "*":
            yield from ends_of(pattern, at, place)
        elif segment[place] in ("?", character):
            yield from ends_of(pattern, at, place + 1)


def ends_of(pattern: list[str], at: int, place: int) -> Iterator[State]:
    """The place, and all that can be reached from it without a character."""
    yield at, place
    if place == len(pattern[at]):
        yield at + 1, -1
    elif pattern[at][place] == "*":
        yield from ends_of(pattern, at, place + 1)


def share_a_path(a: str, b: str) -> bool:
    """The same question put to the product of two automata, step by step: slow, and of any length."""
    one, other = a.split("/"), b.split("/")
    start = ((0, -1), (0, -1), True)
    seen, todo = {start}, [start]
    while todo:
        left, right, after_slash = todo.pop()
        for character in "/abz":
            if character == "/" and after_slash and (left, right) != start[:2]:
                continue
            for pair in product(steps_of(one, left, character), steps_of(other, right, character)):
                following = (*pair, character == "/")
                if character != "/" and is_over(one, pair[0]) and is_over(other, pair[1]):
                    return True
                if following not in seen:
                    seen.add(following)
                    todo.append(following)
    return False


def is_over(pattern: list[str], state: State) -> bool:
    at, place = state
    return place == -1 and all(segment == "**" for segment in pattern[at:])


# --- what a key is ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "normal"),
    [
        ("file:src/lib.rs", "file:src/lib.rs"),
        ("file:./src//lib.rs", "file:src/lib.rs"),
        ("file:src/./a/.//b", "file:src/a/b"),
        ("file:src/./a/.//b/", "file:src/a/b/**"),
        ("file:src/*//", "file:src/*/**"),
        ("file:src/**/", "file:src/**"),
        ("file:.hidden/..x/...", "file:.hidden/..x/..."),
        ("file:with space/ü", "file:with space/ü"),
        ("file:a\\..\\b", "file:a\\..\\b"),
        ("task:./a//../b/", "task:./a//../b/"),
        ("/etc", "/etc"),
        ("task:" + "x" * (MAX_BYTES - 5), "task:" + "x" * (MAX_BYTES - 5)),
        ("file:" + "./" * MAX_BYTES + "a", "file:a"),
    ],
)
def test_a_key_has_one_way_to_be_written(key: str, normal: str) -> None:
    assert normalise(key) == normal
    assert normalise(normal) == normal


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        ("", "empty"),
        ("file:", "must name a path"),
        ("file:.", "must name a path"),
        ("file:././/", "must name a path"),
        ("file:/", "must be relative"),
        ("file:/etc/passwd", "must be relative"),
        ("file://host/x", "must be relative"),
        ("file:..", r"`\.\.`"),
        ("file:a/../b", r"`\.\.`"),
        ("file:a/..", r"`\.\.`"),
        ("file:a\0b", "printable"),
        ("file:a\nb", "printable"),
        ("task:a\x7fb", "printable"),
        ("task:a\x9bb", "printable"),
        ("task:\udcff", "Unicode"),
        ("task:" + "x" * (MAX_BYTES - 4), "at most 1024 bytes, got 1025"),
        ("file:" + "ü" * 510, "at most 1024 bytes, got 1025"),
    ],
)
def test_what_can_be_no_key_is_refused_with_what_to_do(key: str, fault: str) -> None:
    with pytest.raises(BadValue, match=fault) as refused:
        normalise(key)
    assert refused.value.hint
    assert refused.value.line.isprintable()


@many
@given(st.text("ab./*?", max_size=12))
def test_the_normal_form_is_final_and_leaves_the_names_alone(path: str) -> None:
    try:
        normal = normalise(FILE + path)
    except BadValue:
        assert path.startswith("/") or ".." in path.split("/") or not set(path.split("/")) - {"", "."}
        return
    assert normalise(normal) == normal
    names = [name for name in path.split("/") if name not in ("", ".")]
    if path.endswith("/") and names[-1] != "**":
        names.append("**")
    assert normal.removeprefix(FILE).split("/") == names


@pytest.mark.parametrize("key", ["file:*", "file:a?", "file:src/**", "file:a/b*c/d"])
def test_a_file_key_with_a_wildcard_is_a_pattern(key: str) -> None:
    assert is_pattern(key)


@pytest.mark.parametrize("key", ["file:a", "task:*", "a?", "xfile:*", "file", "*", "file:[ab]", "File:*"])
def test_any_other_key_is_not_a_pattern_and_overlaps_itself_alone(key: str) -> None:
    assert not is_pattern(key)
    assert overlap(key, key)
    for other in ("task:x", "ab", "xfile:a", "files", "file:b", "file:[ac]", "File:b", "file:b*", "file:?b"):
        assert not overlap(key, other)
        assert not overlap(other, key)


# --- overlap ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("src/**", "src/lib.rs", True),
        ("src/**", "src/a/b", True),
        ("src/**", "src", True),
        ("src/**", "srcs", False),
        ("src/**", "lib/src/a", False),
        ("src/*", "src", False),
        ("src/*", "src/a/b", False),
        ("src/*.rs", "src/.rs", True),
        ("src/*.rs", "src/lib.py", False),
        ("src/*.rs", "src/lib.*", True),
        ("src/*.rs", "**/lib.py", False),
        ("src/**/x", "**/y", False),
        ("a/**/b", "a/b", True),
        ("a/**/b", "a", False),
        ("**", "x", True),
        ("**/**", "x", True),
        ("a***b", "a*b", True),
        ("***", "a/b", False),
        ("a?c/**/x", "abc/x", True),
        ("a?c", "ac", False),
        ("a?c", "a/c", False),
        ("?*", "*?", True),
        ("*a*b", "b*a*", True),
        ("a*", "A", False),
        ("\u00e9", "e?", False),
        ("?", "\U0001f600", True),
        ("[ab]*", "a", False),
        ("a.b*", "axb", False),
    ],
)
def test_patterns_overlap_as_they_are_described(a: str, b: str, expected: bool) -> None:
    assert overlap(FILE + a, FILE + b) is expected
    assert overlap(FILE + b, FILE + a) is expected


@pytest.mark.soak
def test_two_patterns_overlap_exactly_if_some_path_matches_both() -> None:
    # No shortest common path is longer than the two patterns together.
    every_path = list(texts("ab/", 2 * EXHAUSTIVE))
    letters = "ab*?/" if SOAK else "a*?/"
    matched: dict[str, int] = {}
    for pattern in {*texts(letters, EXHAUSTIVE), *texts("ab*/", EXHAUSTIVE)}:
        matches = matcher(pattern)
        matched[FILE + pattern] = sum(1 << n for n, path in enumerate(every_path) if matches(path))
    wrong = [
        (a, b)
        for a, of_a in matched.items()
        for b, of_b in matched.items()
        if overlap(a, b) is not bool(of_a & of_b)
    ]
    assert not wrong


@many
@given(paths, paths)
@example("**/a/**/b", "a/**/a/b/*")
@example("*a*a*", "?a?")
@example("a/**", "a")
def test_long_patterns_overlap_exactly_if_their_automata_meet(a: str, b: str) -> None:
    expected = share_a_path(a, b)
    assert overlap(FILE + a, FILE + b) is expected
    assert overlap(FILE + b, FILE + a) is expected


# --- which pattern covers which -----------------------------------------------------------------


def test_a_pattern_covers_another_if_it_matches_all_of_its_paths() -> None:
    samples = list(texts("abz/", 5))
    meanings = {
        pattern: sum(1 << at for at, path in enumerate(samples) if matches(path))
        for pattern in [*texts("ab*?/", 3), "a/**", "**/a", "*/**/*", "a/**/b"]
        for matches in [matcher(pattern)]
    }
    for wide, narrow in product(meanings, meanings):
        is_covered = meanings[narrow] & ~meanings[wide] == 0
        assert key_covers(normalise(FILE + wide), normalise(FILE + narrow)) == is_covered, (wide, narrow)


def test_patterns_that_take_too_long_to_compare_count_as_not_covered() -> None:
    contrived = FILE + "*a" + "?" * 40
    assert not key_covers(contrived, FILE + "*a" + "?" * 39 + "a")
    assert key_covers(contrived, contrived)


@pytest.mark.parametrize(
    ("wide", "narrow", "is_covered"),
    [
        ("*", "file:src/**", True),
        ("task:*", "task:42", True),
        ("task:*", "task:4*", True),
        ("task:4*", "task:*", False),
        ("task:42", "task:42", True),
        ("file:**", "task:42", False),
        ("file:**", "*", False),
    ],
)
def test_other_keys_are_covered_by_their_prefixes(wide: str, narrow: str, is_covered: bool) -> None:
    assert key_covers(wide, narrow) is is_covered
