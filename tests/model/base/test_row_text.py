"""Rows as JSON: everything that a column can hold comes back exactly as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import decode_row, is_canonical, row_of, row_text, show_row

_VALUES = (
    st.none()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary()
)


def _exactly(row: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {name: (type(value).__name__, repr(value)) for name, value in row.items()}


@given(st.dictionaries(st.sampled_from("abc"), _VALUES))
@example({"a": 1.0, "b": -0.0, "c": 2**53})
@example({"a": b"", "b": "\0", "c": -(2**63)})
def test_a_row_comes_back_from_its_text_exactly_as_it_was(row: dict[str, Any]) -> None:
    text = row_text(row)
    assert is_canonical(text)
    assert _exactly(row_of(text)) == _exactly(row)
    assert _exactly(decode_row(json.loads(json.dumps(show_row(row))))) == _exactly(row)


@pytest.mark.parametrize(
    "value", [{"$base64": "?"}, {"$int": "x"}, {"$real": ""}, {"a": 1}, [1], {"$int": 1}, {}]
)
def test_what_no_column_can_hold_is_refused(value: Any) -> None:
    with pytest.raises(BadValue, match="'a'"):
        decode_row({"a": value})


@pytest.mark.parametrize("document", [1, "a", None, [{"a": 1}]])
def test_what_is_no_row_is_refused(document: Any) -> None:
    with pytest.raises(BadValue, match="JSON object"):
        decode_row(document)
