"""Follow-up looks: the end of a job is followed by a look at once, as long as such looks find jobs."""

from __future__ import annotations

import pytest

from tests.support.jobs.job_desks import ControlledHandler, ended
from vox_mesh.jobs.worker import claim_loop
from vox_mesh.jobs.worker.follow_up import FollowUp
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.node import MeshNode
from vox_mesh.store.script import new_key


async def test_each_job_of_a_chain_starts_when_the_one_before_it_has_ended(
    local: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_loop, "_MAX_PAUSE_S", 3_600.0)
    monkeypatch.setattr(claim_loop, "_IDLE_PAUSE_FACTOR", 1e9)
    ControlledHandler(local).may_end.set()
    ulids = [new_key() for _ in range(5)]
    chain = [
        Manifest.of(kind="work", payload=ulid, ulid=ulid, after=before)
        for ulid, before in zip(ulids, [None, *([each] for each in ulids)], strict=False)
    ]
    await local.jobs.schedule_all(chain)
    async with local.worker.running():
        await ended(local, ulids[-1])


def test_looks_that_find_nothing_are_asked_for_less_often() -> None:
    follow_up, asked = FollowUp(), []
    for number in range(300):
        follow_up.ask()
        if follow_up.take():
            asked.append(number)
            follow_up.learn(has_found=False)
    assert asked == [0, 2, 6, 14, 30, 62, 126, 190, 254]


def test_a_look_that_finds_a_job_makes_every_end_count_again() -> None:
    follow_up = FollowUp()
    follow_up.learn(has_found=False)
    follow_up.ask()
    assert not follow_up.take()
    follow_up.learn(has_found=True)
    follow_up.ask()
    assert follow_up.take()
    assert not follow_up.take()
