"""One signature for several texts: each can be checked by itself, and nothing else put in its place."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.running.examples import many
from vox_mesh.model.base.keys import (
    MAX_LENGTH,
    MAX_TEXTS,
    join_signature,
    merkle_tree,
    split_signature,
)

_SIGNATURE = "ed25519:" + "0" * 128

texts = st.lists(st.binary(max_size=40), min_size=2, max_size=MAX_TEXTS)


@many
@given(texts)
def test_every_text_leads_to_the_root(them: list[bytes]) -> None:
    root, ways = merkle_tree(them)
    for text, way in zip(them, ways, strict=True):
        carried = join_signature(_SIGNATURE, way)
        assert len(carried) <= MAX_LENGTH
        assert split_signature(carried, text) == (_SIGNATURE, root)


@many
@given(texts, st.data())
def test_nothing_else_leads_there(them: list[bytes], data: st.DataObject) -> None:
    root, ways = merkle_tree(them)
    index = data.draw(st.integers(0, len(them) - 1))
    other = data.draw(st.binary(max_size=80).filter(lambda text: text != them[index]))
    assert split_signature(join_signature(_SIGNATURE, ways[index]), other)[1] != root


def test_a_hash_inside_of_the_tree_is_no_text_of_it() -> None:
    root, (first, *_) = merkle_tree([b"a", b"b", b"c", b"d"])
    left, right = first[1:65], first[66:]
    inner = bytes.fromhex(left) + bytes.fromhex(right)
    assert split_signature(join_signature(_SIGNATURE, "r" + right), inner)[1] != root


@pytest.mark.parametrize(
    "way",
    ["", "r", "x" + "0" * 64, "r" + "0" * 63, "r" + "G" * 64, ("r" + "0" * 64) * 7, "r" + "0" * 64 + "+"],
)
def test_what_is_no_way_leads_nowhere(way: str) -> None:
    signature = join_signature(_SIGNATURE, way)
    assert split_signature(signature, b"text") == (signature, None)
    assert not re.fullmatch(r"ed25519:[0-9a-f]{128}", signature)  # so that it is none by itself either
