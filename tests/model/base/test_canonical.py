"""Canonical JSON: exact for every value, by the standard's own examples and by its own encoder."""

from __future__ import annotations

import json
import math
import struct
from typing import Any, Final

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.running.examples import few, many
from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import canonical, is_canonical, parse

EXACT: Final = 2**53 - 1

numbers = st.one_of(
    st.integers(-EXACT, EXACT),
    st.integers(EXACT - 3, EXACT),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(2.0**52, 2.0**80),
    st.floats(1e20, 1e22),
    st.sampled_from([0.0, -0.0, 1e21, 1e-6, 1e-7, 5e-324, 1.7976931348623157e308, 1e17, float(2**53), 100.0]),
)
# Keys near the border where sorting by code point and by UTF-16 unit differ.
keys = st.one_of(
    st.text(max_size=6),
    st.text("a\u00e9\ud7ff\ue000\ufb33\uffff\U00010000\U0001f600\U0010ffff", min_size=1, max_size=3),
)
texts = st.one_of(st.text(max_size=12), st.text('\x00\x08\t\n\x0b\x0c\r\x1f\x7f"\\/\u2028\u20ac', max_size=8))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


def double(bits: str) -> float:
    """The number with these 64 bits."""
    number: float = struct.unpack(">d", bytes.fromhex(bits))[0]
    return number


def as_doubles(value: Any) -> Any:
    """The value as any reader of JSON has it that knows doubles only: to be compared, not to be encoded."""
    if isinstance(value, dict):
        return {key: as_doubles(each) for key, each in value.items()}
    if isinstance(value, list):
        return [as_doubles(each) for each in value]
    return float(value) if type(value) is int else value


# --- against the standard -------------------------------------------------------------------------


@many
@given(values)
@example({"\U0001f600": 1, "\ufb33": 2})
def test_the_text_is_that_of_the_standards_own_encoder(value: Any) -> None:
    assert canonical(value).encode() == rfc8785.dumps(value)


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("41b3de4355555555", "333333333.3333333"),
        ("41b3de4355555556", "333333333.3333334"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_numbers_of_the_standards_appendix(bits: str, text: str) -> None:
    assert canonical(double(bits)) == text
    assert is_canonical(text)


def test_keys_are_sorted_by_utf_16_units_as_in_the_standards_example() -> None:
    value = {
        "\u20ac": "Euro Sign",
        "\r": "Carriage Return",
        "\ufb33": "Hebrew Letter Dalet With Dagesh",
        "1": "One",
        "\U0001f600": "Emoji: Grinning Face",
        "\u0080": "Control",
        "\u00f6": "Latin Small Letter O With Diaeresis",
    }
    in_order = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    pairs = [f"{json.dumps(key, ensure_ascii=False)}:{json.dumps(value[key])}" for key in in_order]
    assert canonical(value) == "{" + ",".join(pairs) + "}"


def test_the_standards_example_of_a_whole() -> None:
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
        "literals": [None, True, False],
    }
    assert canonical(value) == (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )


def test_only_what_must_be_escaped_is_and_in_its_short_form() -> None:
    assert canonical('\x08\t\n\x0c\r"\\/\x00\x1f\x7f\u2028\u00e9') == (
        '"\\b\\t\\n\\f\\r\\"\\\\/\\u0000\\u001f\x7f\u2028\u00e9"'
    )


@pytest.mark.parametrize("whole", [EXACT, -EXACT, 0])
def test_exact_integers_are_written_as_they_are(whole: int) -> None:
    assert canonical(whole) == str(whole)
    assert parse(canonical(whole)) == whole


# --- there and back -------------------------------------------------------------------------------


@many
@given(values)
def test_a_canonical_text_is_read_as_its_value_and_written_the_same(value: Any) -> None:
    text = canonical(value)
    assert canonical(parse(text)) == text
    assert is_canonical(text)
    assert as_doubles(parse(text)) == as_doubles(value)


@pytest.mark.parametrize(
    "number", [1e17, 1e20, 123456789012345680000.0, float(2**53), -float(2**64), 2.0**63]
)
def test_large_integers_written_as_digits_come_back_the_same(number: float) -> None:
    text = canonical([number])
    assert text.strip("[]-").isdigit()
    assert canonical(parse(text)) == text
    assert is_canonical(text)


@few
@given(values)
def test_white_space_anywhere_is_not_canonical(value: Any) -> None:
    text = canonical(value)
    assert not is_canonical(text + " ")
    assert not is_canonical("\n" + text)
    assert not is_canonical(json.dumps([value, 1], separators=(" ,", ":")))


@pytest.mark.parametrize(
    "text",
    [
        '{"b":1,"a":2}',
        '{"a":{"c":1,"b":1}}',
        '{"\ufb33":1,"\U0001f600":1}',
        '{"a":1,"a":1}',
        '{"a":1,"a":2}',
        '{"\u00e9":1,"\u00e9":1}',
        '{"a": 1}',
        "[1, 2]",
        "1.0",
        "-0",
        "-0.0",
        "1e2",
        "1E21",
        "1e21",
        "0.10",
        "0.0000001",
        "9007199254740993",
        "100000000000000001",
        '"\\u000A"',
        '"\\u000a"',
        '"\\u001F"',
        '"\\/"',
        '"\\u0041"',
        '"\\u00e9"',
        '"\\ud83d\\ude00"',
        '"\\ud800"',
        '"\ud800"',
        "",
        "nul",
        "NaN",
        "Infinity",
        "1e400",
        "1" + "0" * 400,
        "01",
        "[1,]",
        "{}{}",
        "'a'",
        "\ufeff{}",
    ],
)
def test_any_other_text_is_not_canonical(text: str) -> None:
    assert not is_canonical(text)


@few
@given(st.text(max_size=12) | st.text('[]{}",:\\u0019.eE+- tn', max_size=12))
def test_any_text_at_all_is_judged(text: str) -> None:
    if is_canonical(text):
        assert rfc8785.dumps(parse(text)).decode() == text
    else:
        try:
            value = json.loads(text)
            assert rfc8785.dumps(value).decode() != text
        except (ValueError, rfc8785.CanonicalizationError):
            return


# --- what has none --------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2**53, -(2**53), 2**64, 10**400])
@pytest.mark.parametrize("other", ["plain", 1.5])
def test_a_number_that_json_cannot_hold_is_refused(value: float, other: Any) -> None:
    for nested in (value, [value, other], {"a": {"b": value}, "c": other}):
        with pytest.raises(BadValue, match="no canonical JSON"):
            canonical(nested)


@pytest.mark.parametrize("half", ["\ud800", "a\udc00b", "\ude00\ud83d"])
@pytest.mark.parametrize("other", ["plain", 1.5])
def test_half_a_surrogate_pair_is_refused_in_text_and_in_keys(half: str, other: Any) -> None:
    for value in (
        half,
        [half, other],
        {half: other},
        {"a": other, "b": {half: 1}},
        {"\u00e9": half},
    ):
        with pytest.raises(BadValue, match="no canonical JSON"):
            canonical(value)


@pytest.mark.parametrize("key", [1, 1.5, None, True, b"a", ("a",)])
@pytest.mark.parametrize("other", ["plain", 1.5])
def test_a_key_that_is_no_text_is_refused(key: Any, other: Any) -> None:
    for value in ({key: 1}, {"a": other, key: 1}, [{"b": {key: other}}]):
        with pytest.raises(BadValue, match="no canonical JSON"):
            canonical(value)


@pytest.mark.parametrize("value", [b"a", {1}, object(), 1j])
@pytest.mark.parametrize("other", ["plain", 1.5])
def test_what_is_no_json_value_is_refused(value: Any, other: Any) -> None:
    for nested in (value, [other, value], {"a": value, "b": other}):
        with pytest.raises(BadValue, match="no canonical JSON"):
            canonical(nested)


def nested(depth: int, inner: Any, *, in_objects: bool = False) -> Any:
    for _ in range(depth):
        inner = {"a": inner} if in_objects else [inner]
    return inner


@pytest.mark.parametrize("inner", [1, 1.5, 1.0, "a", {"\u00e9": 1}], ids=repr)
@pytest.mark.parametrize("in_objects", [False, True])
def test_what_is_nested_too_deeply_is_refused(inner: Any, in_objects: bool) -> None:
    for depth in (300, 900, 5_000):
        with pytest.raises(BadValue, match="no canonical JSON"):
            canonical(nested(depth, inner, in_objects=in_objects))


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = [1.5]
    value.append(value)
    with pytest.raises(BadValue, match="no canonical JSON"):
        canonical(value)


@pytest.mark.parametrize("depth", [253, 254, 255, 256])
@pytest.mark.parametrize("inner", [1, 1.0, 1.5, 1e17, {"\u00e9": 1.0}], ids=repr)
def test_what_was_written_can_be_read_however_deep(depth: int, inner: Any) -> None:
    """A number such as 1.0 is read as an integer, which must not be held to another limit of depth."""
    try:
        text = canonical(nested(depth, inner), max_depth=None)
    except BadValue:
        assert depth > 253
        return
    assert is_canonical(text)
    assert canonical(parse(text), max_depth=None) == text


@pytest.mark.parametrize("depth", [300, 900, 1_020, 5_000, 100_000])
def test_a_text_nested_too_deeply_is_not_canonical_and_breaks_nothing(depth: int) -> None:
    for text in (
        "[" * depth + "]" * depth,
        '{"a":' * depth + "1" + "}" * depth,
        "[" * depth + "1.5" + "]" * depth,
    ):
        assert not is_canonical(text)
        if depth > 1_024:
            with pytest.raises(BadValue, match="not JSON"):
                parse(text)


@pytest.mark.parametrize("text", ["", "{", "nul", "[1,]", b"\xff", "1e400", '"\\ud800"', "\ud800"])
def test_what_is_not_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(BadValue, match="not JSON"):
        parse(text)
