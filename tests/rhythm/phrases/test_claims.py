"""Status claims: what is taken down, and what is refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vox_mesh.errors import BadValue
from vox_mesh.model.base.hlc import Hlc
from vox_mesh.model.rhythm.claims import MAX_NOTES, MAX_WAITS, ClaimState, StatusClaim

_HLC = str(Hlc(1_800_000_000_000, 7, "a"))
_WORD = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=20)
_CLAIMS = st.builds(
    StatusClaim,
    agent_id=_WORD,
    task_id=_WORD,
    beat_index=st.integers(1, 64),
    state=st.sampled_from(ClaimState),
    wait_for=st.lists(_WORD, max_size=3).map(tuple),
    beats_left=st.none() | st.integers(0, 1_000),
    progress=st.none() | st.floats(0, 1),
    notes=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30),
    hlc=st.just(_HLC),
)


def document(**changed: Any) -> dict[str, Any]:
    """A claim as it travels, with other values in some places."""
    plain = {"agent_id": "a", "task_id": "t", "beat_index": 3, "state": "executing", "hlc": _HLC}
    return plain | changed


@given(_CLAIMS)
def test_a_claim_travels_as_json_and_comes_back_the_same(claim: StatusClaim) -> None:
    assert StatusClaim.of_document(orjson.loads(orjson.dumps(claim.document()))) == claim


def test_the_beat_of_an_old_claim_is_its_index_and_its_bar_is_dropped() -> None:
    old = document(bar=1287, beat=5)
    del old["beat_index"]
    assert StatusClaim.of_document(old) == StatusClaim.of_document(document(beat_index=5))
    assert StatusClaim.of_document(document(bar=1, beat=5)).beat_index == 3, "the new field counts"


@pytest.mark.parametrize("text", ["2025-09-03T02:12:27.183Z+1287:3+17", "2025-09-03T02:12:27.183Z+17"])
def test_the_time_of_a_beat_frame_is_taken_for_one_of_the_agent(text: str) -> None:
    assert StatusClaim.of_document(document(hlc=text)).hlc == "1756865547183-00017-a"


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"agent_id": ""}, "agent_id"),
        ({"agent_id": "two\nlines"}, "agent_id"),
        ({"task_id": 7}, "task_id"),
        ({"beat_index": 0}, "beat_index"),
        ({"beat_index": True}, "beat_index"),
        ({"beat_index": 65}, "beat_index"),
        ({"state": "idle"}, "state"),
        ({"wait_for": "one"}, "wait_for"),
        ({"wait_for": ["x"] * (MAX_WAITS + 1)}, "wait_for"),
        ({"beats_left": -1}, "beats_left"),
        ({"beats_left": 1.5}, "beats_left"),
        ({"progress": 1.01}, "progress"),
        ({"progress": float("nan")}, "progress"),
        ({"notes": "x" * (MAX_NOTES + 1)}, "notes"),
        ({"notes": "a\0b"}, "notes"),
        ({"notes": "\ud800"}, "notes"),
        ({"hlc": "yesterday"}, "hlc"),
        ({"hlc": "2025-02-30T02:12:27.183Z+17"}, "hlc"),
        ({"hlc": "1969-09-03T02:12:27.183Z+17"}, "hlc"),
        ({"hlc": "2025-09-03T02:12:27.183Z+123456"}, "hlc"),
        ({"hlc": "2025-09-03T02:12:27.183+02:00+17"}, "hlc"),
        ({"mood": "good"}, "mood"),
    ],
)
def test_what_can_not_be_right_is_refused_by_name(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(BadValue, match=named):
        StatusClaim.of_document(document(**changed))


@pytest.mark.parametrize("gone", ["agent_id", "task_id", "beat_index", "state", "hlc"])
def test_what_every_claim_says_can_not_be_left_out(gone: str) -> None:
    short = document()
    del short[gone]
    with pytest.raises(BadValue, match=f"no {gone}"):
        StatusClaim.of_document(short)


def test_all_that_is_wrong_is_reported_at_once() -> None:
    with pytest.raises(BadValue, match=r"agent_id.*state.*progress"):
        StatusClaim.of_document(document(agent_id="", state="?", progress=2))
    with pytest.raises(BadValue, match="must be an object"):
        StatusClaim.of_document(["a"])
