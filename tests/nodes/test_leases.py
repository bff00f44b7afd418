"""Leases: renewed in time, retried after a failure, and given up when they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from typing import Final

from vox_mesh.nodes.leases import LeaseRenewer
from vox_mesh.store.background import BackgroundFaults

_TTL_S: Final = 0.3
_PATIENCE_S: Final = 10.0


class _Lease:
    """A lease that is renewed by setting its deadline."""

    def __init__(self, ttl: float = _TTL_S) -> None:
        self.ttl = ttl
        self.deadline = time.monotonic() + ttl


class _Leases:
    """A renewer, and what it has done."""

    def __init__(self) -> None:
        self.renewed: list[Sequence[_Lease]] = []
        self.lost: list[_Lease] = []
        self.ends: set[_Lease] = set()
        self.failures: list[Exception] = []
        self.changed = asyncio.Condition()
        self.faults = BackgroundFaults()
        self.renewer: LeaseRenewer[_Lease] = LeaseRenewer(
            self._renew, self.lost.append, time.monotonic, self.faults, task_name="leases"
        )

    async def _renew(self, leases: Sequence[_Lease]) -> Collection[_Lease]:
        self.renewed.append(leases)
        async with self.changed:
            self.changed.notify_all()
        if self.failures:
            raise self.failures.pop()
        for each in leases:
            if each not in self.ends:
                each.deadline = time.monotonic() + each.ttl
        return self.ends.intersection(leases)

    async def until_renewed(self, times: int) -> None:
        """Wait for this many renewals."""
        async with asyncio.timeout(_PATIENCE_S), self.changed:
            await self.changed.wait_for(lambda: len(self.renewed) >= times)

    async def until_lost(self, lease: _Lease) -> None:
        """Wait until a lease is lost."""
        async with asyncio.timeout(_PATIENCE_S):
            while lease not in self.lost:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_lease_is_renewed_until_it_is_released() -> None:
    leases, lease = _Leases(), _Lease()
    leases.renewer.hold(lease)
    await leases.until_renewed(3)
    assert lease.deadline > time.monotonic()
    leases.renewer.release(lease)
    count = len(leases.renewed)
    await asyncio.sleep(_TTL_S)
    assert (len(leases.renewed), leases.lost) == (count, [])


async def test_leases_that_are_due_together_are_renewed_together() -> None:
    leases = _Leases()
    both = [_Lease(), _Lease()]
    both[1].deadline = both[0].deadline
    for each in both:
        leases.renewer.hold(each)
    await leases.until_renewed(1)
    leases.renewer.close()
    assert leases.renewed[0] == both


async def test_a_short_lease_is_renewed_in_time_though_a_long_one_was_there_before() -> None:
    leases, long, short = _Leases(), _Lease(1_000.0), _Lease()
    leases.renewer.hold(long)
    leases.renewer.hold(short)
    await leases.until_renewed(1)
    leases.renewer.close()
    assert leases.renewed[0] == [short]


async def test_a_renewal_that_fails_is_retried_and_counted() -> None:
    leases, lease = _Leases(), _Lease(3.0)
    leases.failures.append(ZeroDivisionError())
    leases.renewer.hold(lease)
    await leases.until_renewed(2)
    leases.renewer.close()
    assert (leases.faults.counts["leases"], leases.lost) == (1, [])


async def test_a_lease_that_is_over_at_the_database_is_lost_once() -> None:
    leases, lease, other = _Leases(), _Lease(), _Lease(1_000.0)
    leases.ends.add(lease)
    leases.renewer.hold(lease)
    leases.renewer.hold(other)
    await leases.renewer.renew_all()
    await leases.renewer.renew_all()
    assert (leases.lost, list(leases.renewer.leases)) == ([lease], [other])
    leases.renewer.close()


async def test_a_lease_that_is_only_watched_is_lost_at_its_end() -> None:
    leases, lease = _Leases(), _Lease()
    leases.renewer.hold(lease, is_renewed=False)
    await leases.renewer.renew_all()
    await leases.until_lost(lease)
    assert time.monotonic() >= lease.deadline
    assert leases.renewed == []


async def test_a_lease_whose_renewal_hangs_is_lost_at_its_end() -> None:
    async def hang(_: Sequence[_Lease]) -> Collection[_Lease]:
        await asyncio.get_running_loop().create_future()
        return ()

    lost: list[_Lease] = []
    lease = _Lease()
    renewer: LeaseRenewer[_Lease] = LeaseRenewer(
        hang, lost.append, time.monotonic, BackgroundFaults(), task_name="leases"
    )
    renewer.hold(lease)
    async with asyncio.timeout(_PATIENCE_S):
        while not lost:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    renewer.close()
    assert lost == [lease]
