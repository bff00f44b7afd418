"""Failed claims: the delays grow, have a limit and jitter, and begin again after a success."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from tests.support.jobs.job_desks import ControlledHandler, ended, scheduled
from vox_mesh.errors import DatabaseUnavailable
from vox_mesh.jobs.worker.claim_backoff import ClaimBackoff
from vox_mesh.jobs.worker.claim_loop import ClaimLoop
from vox_mesh.jobs.worker.claim_round import NOW, NextLook
from vox_mesh.node import MeshNode

_BACKOFFS: Final = ("_error_backoff", "_race_backoff")


@pytest.fixture
def loop(local: MeshNode) -> ClaimLoop:
    """The claim loop of a worker that is open but does not run; its delays are whole."""
    worker = local.worker
    ControlledHandler(local).may_end.set()
    worker._capacity.open(4)
    claiming = worker._claim_loop
    for name in _BACKOFFS:
        getattr(claiming, name)._chance = lambda: 1.0
    return claiming


def test_delays_double_up_to_a_limit_with_jitter() -> None:
    chances = iter((1.0, 0.0, 0.5, 1.0, 0.0, 1.0))
    backoff = ClaimBackoff(1.0, 5.0, lambda: next(chances))
    assert [backoff.next_delay() for _ in range(5)] == [1.0, 1.0, 3.0, 5.0, 2.5]
    backoff.reset()
    assert backoff.next_delay() == 1.0
    always = ClaimBackoff(1.0, 5.0, lambda: 1.0)
    assert {always.next_delay() for _ in range(10_000)} == {1.0, 2.0, 4.0, 5.0}


async def test_looks_that_fail_back_off_until_one_succeeds(
    loop: ClaimLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> NextLook:
        raise DatabaseUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(loop, "run_once", away)
        looks = [await loop._look() for _ in range(5)]
    assert looks == [NextLook(each, is_backoff=True) for each in (0.5, 1.0, 2.0, 4.0, 5.0)]
    assert not (await loop._look()).is_backoff
    monkeypatch.setattr(loop, "run_once", away)
    assert (await loop._look()).delay_s == 0.5


async def test_lost_races_back_off_until_a_claim_succeeds(
    loop: ClaimLoop, local: MeshNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await scheduled(local, 1)

    async def lost(*asked: Any) -> list[Any]:
        return []

    with monkeypatch.context() as patch:
        patch.setattr(local.worker._claimer, "claim", lost)
        delays = [(await loop.run_once()).delay_s for _ in range(8)]
    assert delays == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]
    assert await loop.run_once() == NOW
    await ended(local, *jobs)
    assert loop._race_backoff.next_delay() == 0.02


async def test_changes_do_not_shorten_a_backoff_and_a_stop_does(loop: ClaimLoop) -> None:
    waiting = asyncio.create_task(loop._back_off(3_600))
    for _ in range(5):
        loop._wake.set()
        await asyncio.sleep(0)
        assert not waiting.done()
    loop._capacity.close()
    loop._wake.set()
    await asyncio.wait_for(waiting, 30)
