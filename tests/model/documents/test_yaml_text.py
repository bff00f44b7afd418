"""The reader of YAML and JSON: what a text says and where, the same by each of the parsers there are."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.model.jobs.test_manifest import WHOLE, names, texts, values
from tests.support.running.examples import few
from vox_mesh.errors import BadManifest
from vox_mesh.model.documents import yaml_reader as yaml_text
from vox_mesh.model.documents.yaml_reader import read_documents
from vox_mesh.model.jobs.manifest import Manifest, parse_manifests


def outcome(text: str | bytes) -> Manifest | str | None:
    """The first manifest of a text, or the first of what is wrong with it."""
    try:
        return next(iter(parse_manifests(text)), None)
    except BadManifest as refused:
        return next((fault for fault in refused.faults if fault.startswith("manifest:")), None)


@pytest.fixture(params=["CSafeLoader", "SafeLoader"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the two parsers that a machine may have."""
    if not hasattr(yaml, request.param):
        pytest.skip("this machine has no libyaml")
    monkeypatch.setattr(yaml_text, "_Loader", getattr(yaml, request.param))


@pytest.mark.usefixtures("loader")
@few
@given(st.dictionaries(names | texts, values, max_size=4), st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_all_json_is_read_as_what_it_says(value: Any, ascii_only: bool, indent: Any) -> None:
    (document,) = read_documents(json.dumps(value, ensure_ascii=ascii_only, indent=indent), "a")
    assert not document.faults
    assert document.value == value


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("yes", "yes"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("2030-01-31", "2030-01-31"),
        ("1_000", "1_000"),
        ("0b1", "0b1"),
        ("=", "="),
        ("'<<'", "<<"),
        ("", None),
        ("~", None),
        ("'null'", "null"),
        ("True", True),
        ("007", 7),
        ("0o17", 15),
        ("0x1F", 31),
        ("+1", 1),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-1.", -1.0),
        ("|\n  1\n  2", "1\n2\n"),
        ('"\\ud7ff\\t\\x85"', "\ud7ff\t\x85"),
        ("\U0001f600", "\U0001f600"),
    ],
)
def test_only_the_words_of_the_core_schema_have_a_meaning(written: str, value: Any) -> None:
    (document,) = read_documents(f"a: {written}\n", "a")
    assert not document.faults
    assert repr(document.value) == repr({"a": value})


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_the_line_of_every_field_is_known(ending: str) -> None:
    text = "# so\na: 1\nb:\n  - x\n  - c: |\n      long\n    d: [1,\n        2]\n---\ne:\n  1\n"
    first, second = read_documents(text.replace("\n", ending), "a")
    lines = {
        (): 2,
        ("a",): 2,
        ("b",): 3,
        ("b", 0): 4,
        ("b", 1, "c"): 5,
        ("b", 1, "d"): 7,
        ("b", 1, "d", 1): 8,
    }
    assert {path: first.line_of(path) for path in lines} == lines
    assert first.line_of(("b", 1, "no", "such")) == 5
    assert second.line_of(("e",)) == 10


@pytest.mark.usefixtures("loader")
@few
@given(
    st.text(st.sampled_from("{}[],:?-&*!|>'\"%@`# \n\tabk1.~<\\u0\u2028\x00\ufeff\U0001f600"), max_size=40)
    | st.text(max_size=30)
    | st.binary(max_size=30)
)
def test_any_text_at_all_is_read_or_refused(text: str | bytes) -> None:
    assert outcome(text) is not None


@pytest.mark.usefixtures("loader")
@few
@given(st.data())
def test_a_manifest_with_a_character_changed_is_read_or_refused(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(WHOLE) - 1))
    put = data.draw(
        st.sampled_from(["", "\n", "\t", "{", "]", ":", "'", '"', "&", "*a", "\\", "0", "z", "- "])
    )
    assert outcome(WHOLE[:place] + put + WHOLE[place + 1 :]) is not None
