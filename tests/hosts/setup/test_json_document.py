"""Edits of JSON documents: what others wrote stays unchanged, and what is removed leaves no trace."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hosts.setup.jsonc import DOCUMENTS, VALUES
from vox_mesh.hosts.setup.documents.errors import DocumentRefused
from vox_mesh.hosts.setup.documents.json_document import JsonDocument
from vox_mesh.hosts.setup.documents.marked_block import MarkedBlock
from vox_mesh.hosts.setup.documents.syntax import parse

_OURS = {"command": "ours", "list": [1, {"deep": True}], "empty": []}


@given(DOCUMENTS)
def test_a_member_that_is_inserted_and_removed_leaves_the_same_bytes(text: str) -> None:
    document = JsonDocument(text)
    try:
        changed = document.with_member(("ours", "deep", "vox-mesh"), _OURS)
    except DocumentRefused:
        return
    assert changed.value == {**document.value, "ours": {"deep": {"vox-mesh": _OURS}}}
    restored = changed.without(("ours", "deep", "vox-mesh"))
    assert restored is not None
    assert restored.text == text


@given(
    DOCUMENTS,
    st.lists(st.sampled_from([("hooks", "Stop"), ("hooks", "New"), ("hooks",)]), min_size=1, max_size=3),
)
def test_elements_and_members_leave_in_any_order(text: str, paths: list[tuple[str, ...]]) -> None:
    document = JsonDocument(text)
    marks = [f"ours-{number}" for number in range(len(paths))]
    for mark, path in zip(marks, paths, strict=True):
        try:
            document = document.with_element(path, {"mark": mark})
        except DocumentRefused:
            document = document.with_member((mark, "x"), {"mark": mark})
    for mark in marks:
        left = document.without(_path_of(document.value, mark))
        assert left is not None
        document = left
    assert document.text == text


def _path_of(value: Any, mark: str) -> tuple[str | int, ...]:
    found = _search(value, mark)
    assert found is not None
    return found


def _search(value: Any, mark: str) -> tuple[str | int, ...] | None:
    if value == {"mark": mark}:
        return ()
    children: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, child in children:
        rest = _search(child, mark)
        if rest is not None:
            return (key, *rest)
    return None


@given(VALUES)
def test_a_document_is_read_as_python_reads_it(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        parse(text)  # comments and trailing commas are fine
        return
    assert parse(text).plain() == expected


@given(st.text(alphabet='{}[]",:/*\\ 1truefalsnd\n', max_size=20))
def test_what_python_reads_is_never_refused_and_nothing_else_crashes(text: str) -> None:
    try:
        found = parse(text).plain()
    except DocumentRefused:
        with pytest.raises(json.JSONDecodeError):
            json.loads(text)
        return
    try:
        assert json.loads(text) == found
    except ValueError:
        assert any(mark in text for mark in ("//", "/*", ",")), text


def test_a_comment_stays_with_the_member_before_it() -> None:
    document = JsonDocument('{\n    "a": 1 // about a\n}\n').with_member(("b",), 2)
    assert document.text == '{\n    "a": 1, // about a\n    "b": 2\n}\n'


def test_the_style_of_the_document_is_used() -> None:
    document = JsonDocument('{\r\n\t"a": 1,\r\n}').with_member(("b",), [1])
    assert document.text == '{\r\n\t"a": 1,\r\n\t"b": [\r\n\t\t1\r\n\t],\r\n}'


def test_what_the_user_adds_to_a_container_of_ours_stays() -> None:
    made = JsonDocument.made_of({"hooks": {"Stop": [1]}})
    mixed = made.with_member(("hooks", "Mine"), [2])
    left = mixed.without(("hooks", "Stop", 0))
    assert left is not None
    assert left.value == {"hooks": {"Mine": [2]}}


def test_a_comment_in_a_container_of_ours_keeps_it() -> None:
    made = JsonDocument.made_of({"hooks": [1]})
    commented = JsonDocument(made.text.replace("[", "[ // mine", 1))
    left = commented.without(("hooks", 0))
    assert left is not None
    assert "// mine" in left.text
    assert left.value == {"hooks": []}


def test_a_document_that_was_made_is_gone_with_its_last_member() -> None:
    made = JsonDocument.made_of({"hooks": {"stop": [1]}, "version": 1})
    assert made.without(("hooks", "stop", 0), {"version": 1}) is None
    own = JsonDocument('{\n  "version": 1\n}\n').with_element(("hooks", "stop"), 1)
    left = own.without(("hooks", "stop", 0), {"version": 1})
    assert left is not None
    assert left.text == '{\n  "version": 1\n}\n'


def test_a_member_that_the_user_has_put_behind_a_comment_stays_outside_of_it() -> None:
    left = JsonDocument('{"a": 1, // note\n "ours": 2, "b": 3}').without(("ours",))
    assert left is not None
    assert left.value == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "line 1: JSON value expected"),
        ("[]", "document must be an object"),
        ('{\n"a": }', "line 2: JSON value expected"),
        ("{a: 1}", "name in double quotes expected"),
        ('{"a" 1}', "colon expected"),
        ('{"a": 1 "b": 2}', "comma or } expected"),
        ("{} {}", "end of the document expected"),
        ("{} /*", "end of the document expected"),
        ('{"a": ' + "[" * 1_000, "nested at most"),
        ('{"a": ' + "1" * 5_000 + "}", "JSON value expected"),
    ],
)
def test_a_faulty_document_is_refused_with_its_line(text: str, fault: str) -> None:
    with pytest.raises(DocumentRefused, match=fault):
        JsonDocument(text)


def test_a_value_of_another_type_is_not_replaced() -> None:
    with pytest.raises(DocumentRefused, match="hooks must be an object, got an array"):
        JsonDocument('{"hooks": []}').with_element(("hooks", "Stop"), 1)


_TEXTS = st.one_of(st.none(), st.text(alphabet="a\n #[]", max_size=12), st.just("a\r\nb"), st.just("a\r\n"))


@given(_TEXTS, st.permutations(["one", "two"]))
def test_blocks_leave_in_any_order(text: str | None, order: list[str]) -> None:
    changed = text
    for name in ("one", "two"):
        changed = MarkedBlock(name).put(changed, f"{name} = 1\n")
        assert MarkedBlock(name).content(changed) == f"{name} = 1\n"
        assert MarkedBlock(name).put(changed, f"{name} = 1\n") == changed
    for name in order:
        assert changed is not None
        changed = MarkedBlock(name).take(changed)
    assert changed == text
