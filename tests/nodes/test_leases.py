"""Leases: renewed in time, retried after a failure, and given up when they end."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from tests.support.nodes.virtual_time import in_virtual_time
from vox_mesh.nodes.leases import LeaseRenewer
from vox_mesh.store.background import BackgroundFaults

_TTL_S: Final = 30.0
_HANGS_S: Final = 1_000.0


def _now() -> float:
    return asyncio.get_running_loop().time()


class _Lease:
    """A lease that is renewed by setting its deadline."""

    def __init__(self, ttl: float = _TTL_S) -> None:
        self.ttl = ttl
        self.deadline = _now() + ttl


class _Leases:
    """A renewer, and what it has done: each renewal and each loss with its time."""

    def __init__(self, *, takes_s: float = 0.0) -> None:
        self.takes_s = takes_s
        self.renewed: list[tuple[float, Sequence[_Lease]]] = []
        self.lost: list[tuple[float, _Lease]] = []
        self.ends: set[_Lease] = set()
        self.failures: list[Exception] = []
        self.faults = BackgroundFaults()
        self.renewer: LeaseRenewer[_Lease] = LeaseRenewer(
            self._renew,
            lambda lease: self.lost.append((round(_now(), 3), lease)),
            asyncio.get_running_loop().time,
            self.faults,
            task_name="leases",
        )

    async def _renew(self, leases: Sequence[_Lease]) -> Collection[_Lease]:
        self.renewed.append((round(_now(), 3), leases))
        await asyncio.sleep(self.takes_s)
        if self.failures:
            raise self.failures.pop()
        for each in leases:
            if each not in self.ends:
                each.deadline = _now() + each.ttl
        return self.ends.intersection(leases)

    @property
    def renewed_at(self) -> list[float]:
        """When a renewal was sent."""
        return [at for at, _ in self.renewed]


@in_virtual_time
async def test_a_lease_is_renewed_after_a_third_of_its_ttl_until_it_is_released() -> None:
    leases, lease = _Leases(), _Lease()
    leases.renewer.hold(lease)
    await asyncio.sleep(3.5 * _TTL_S / 3)
    assert leases.renewed_at == [10.0, 20.0, 30.0]
    leases.renewer.release(lease)
    await asyncio.sleep(2 * _TTL_S)
    assert (len(leases.renewed), leases.lost) == (3, [])


@in_virtual_time
async def test_leases_that_are_due_together_are_renewed_together() -> None:
    leases, both = _Leases(), [_Lease(), _Lease()]
    for each in both:
        leases.renewer.hold(each)
    await asyncio.sleep(_TTL_S / 2)
    leases.renewer.close()
    assert [each for _, each in leases.renewed] == [both]


@in_virtual_time
async def test_a_short_lease_is_renewed_in_time_though_a_long_one_was_there_before() -> None:
    leases, long, short = _Leases(), _Lease(100 * _TTL_S), _Lease()
    leases.renewer.hold(long)
    leases.renewer.hold(short)
    await asyncio.sleep(_TTL_S / 2)
    leases.renewer.close()
    assert leases.renewed == [(10.0, [short])]


@in_virtual_time
async def test_a_renewal_that_fails_is_retried_and_counted() -> None:
    leases, lease = _Leases(), _Lease()
    leases.failures.append(ZeroDivisionError())
    leases.renewer.hold(lease)
    await asyncio.sleep(_TTL_S / 2)
    leases.renewer.close()
    assert leases.renewed_at == [10.0, 10.5]
    assert (leases.faults.counts["leases"], leases.lost) == (1, [])


@in_virtual_time
async def test_a_lease_that_is_over_at_the_database_is_lost_once() -> None:
    leases, lease, other = _Leases(), _Lease(), _Lease()
    leases.ends.add(lease)
    leases.renewer.hold(lease)
    leases.renewer.hold(other)
    await leases.renewer.renew_all()
    await leases.renewer.renew_all()
    assert (leases.lost, list(leases.renewer.leases)) == ([(0.0, lease)], [other])
    leases.renewer.close()


@in_virtual_time
async def test_only_the_due_leases_are_renewed_out_of_turn() -> None:
    leases = _Leases()
    expired, due, early = _Lease(), _Lease(), _Lease()
    for each in (expired, due, early):
        leases.renewer.hold(each)
    expired.deadline, due.deadline = _now(), _now() + _TTL_S / 2
    await leases.renewer.renew_due()
    assert (leases.renewed, leases.lost) == ([(0.0, [due])], [(0.0, expired)])
    assert list(leases.renewer.leases) == [due, early]
    leases.renewer.close()


@in_virtual_time
async def test_a_lease_that_is_only_watched_is_lost_at_its_end() -> None:
    leases, lease = _Leases(), _Lease()
    leases.renewer.hold(lease, is_renewed=False)
    await leases.renewer.renew_all()
    await asyncio.sleep(2 * _TTL_S)
    assert (leases.renewed, leases.lost) == ([], [(_TTL_S, lease)])


@in_virtual_time
async def test_a_lease_whose_renewal_hangs_is_lost_at_its_end() -> None:
    leases, lease = _Leases(takes_s=_HANGS_S), _Lease()
    leases.renewer.hold(lease)
    await asyncio.sleep(2 * _TTL_S)
    assert leases.lost == [(_TTL_S, lease)]
    leases.renewer.close()
