"""The memory of nonces: each once, bounded, and nothing older than the memory."""

from __future__ import annotations

from typing import Final

import pytest

from vox_mesh.http.principals import nonces
from vox_mesh.http.principals.nonces import Nonces
from vox_mesh.model.principals.request_signature import MAX_AHEAD_MS, MAX_SKEW_MS

START_MS: Final = 1_700_000_000_000


def test_a_nonce_is_new_once_for_each_agent() -> None:
    memory = Nonces(START_MS)
    assert memory.add("ann", "N", START_MS + 5)
    assert memory.add("ben", "N", START_MS + 5)
    assert not memory.add("ann", "N", START_MS + 5)


def test_what_was_forgotten_is_too_old() -> None:
    memory = Nonces(START_MS)
    assert memory.floor_ms == START_MS + MAX_AHEAD_MS + 1
    assert memory.add("ann", "N", START_MS)
    later_ms = START_MS + MAX_SKEW_MS
    assert memory.has_room("ann", later_ms)
    assert not memory.add("ann", "N", START_MS), "it could still be accepted"
    assert memory.has_room("ann", later_ms + 3 * MAX_SKEW_MS)
    assert memory.floor_ms > START_MS + MAX_AHEAD_MS + 1, "also if the clock is set back"


def test_a_full_memory_takes_no_more_until_nonces_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nonces, "MAX_NONCES", 3)
    monkeypatch.setattr(nonces, "MAX_OF_AGENT", 2)
    monkeypatch.setattr(nonces, "RESERVED", 1)
    memory = Nonces(START_MS)
    for nonce in ("A", "B"):
        assert memory.has_room("ann", START_MS)
        assert memory.add("ann", nonce, START_MS)
    assert not memory.has_room("ann", START_MS)
    assert memory.has_room("ben", START_MS)
    assert memory.add("ben", "A", START_MS)
    assert memory.has_room("cid", START_MS), "others can't keep it out"
    assert memory.add("cid", "A", START_MS)
    assert not memory.has_room("cid", START_MS)
    for agent in ("ann", "cid"):
        assert memory.has_room(agent, START_MS + 4 * MAX_SKEW_MS)
