"""What a node keeps in its slot about the database, and reads back."""

from __future__ import annotations

import pytest

from vox_mesh.model.nodes.store_memory import Epoch, StoreMemory

_MEMORY = StoreMemory(Epoch(3, "op", "origin"), 2, 7, 90, 88, "entry", 40, "hash", 2**50)


def test_it_is_read_as_it_was_kept() -> None:
    assert StoreMemory.decode(_MEMORY.encode()) == _MEMORY


@pytest.mark.parametrize("token", [-1, 2**53, 2**63])
def test_a_token_that_cannot_have_been_given_out_is_not_believed(token: int) -> None:
    assert StoreMemory.decode(_MEMORY._replace(fence_token=token).encode()) is None


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"null", _MEMORY.encode()[:-5]])
def test_anything_else_is_as_good_as_no_memory(text: bytes) -> None:
    assert StoreMemory.decode(text) is None
