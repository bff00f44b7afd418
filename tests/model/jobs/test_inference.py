"""Inference snapshots: canonical, bounded, and of one job."""

from __future__ import annotations

from typing import Any, Final

import pytest

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.jobs.inference import MAX_INPUTS, MAX_SNAPSHOT_BYTES, SNAPSHOT, inference_snapshot

JOB: Final = "ab" * 32
SAID: Final[dict[str, Any]] = {
    "source_job": JOB,
    "model": "a-model",
    "version": "2027-01",
    "prompt": [{"role": "user", "content": "How many?"}],
    "output": "Three.",
    "inputs": ["blake3:" + "cd" * 32],
    "started_ms": 1_800_000_000_000,
    "finished_ms": 1_800_000_001_500,
}


def test_a_snapshot_says_what_was_asked_and_answered_and_for_which_job() -> None:
    assert SNAPSHOT == "likewise.inference.snapshot"
    assert canonical(inference_snapshot(**SAID)) == (
        '{"finished_at":"2027-01-15T08:00:01.500Z","inputs":["blake3:' + "cd" * 32 + '"],"model":"a-model",'
        '"output":"Three.","prompt":[{"content":"How many?","role":"user"}],"source_job":"' + JOB + '",'
        '"started_at":"2027-01-15T08:00:00.000Z","type":"likewise.inference.snapshot","v":1,"version":"2027-01"}'
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"source_job": "ab"},
        {"source_job": None},
        {"model": ""},
        {"model": "a\nb"},
        {"version": 2},
        {"prompt": b"bytes"},
        {"prompt": "\ud800"},
        {"output": float("nan")},
        {"output": "x" * MAX_SNAPSHOT_BYTES},
        {"inputs": "abc"},
        {"inputs": [1] * (MAX_INPUTS + 1)},
        {"inputs": [{1, 2}]},
        {"started_ms": -1},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_can_not_be_kept_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadValue) as refused:
        inference_snapshot(**(SAID | wrong))
    assert len(refused.value.line) < 300
