"""The budgets of grants: what a job might have cost is what it did cost, once it has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.support.nodes.shared_mesh import assert_whole
from tests.support.oplog.exports import exported
from vox_mesh import JobContext, acting_as
from vox_mesh.errors import OverGrantBudget
from vox_mesh.jobs.jobs import Scheduled
from vox_mesh.jobs.rebuild import Rebuild
from vox_mesh.jobs.work.reports import failed, succeeded
from vox_mesh.model.base.keys import SigningKey
from vox_mesh.node import MeshNode
from vox_mesh.oplog.export import verify_export
from vox_mesh.oplog.grants.reservations import read_reserved
from vox_mesh.store.script import Script, Statement
from vox_mesh.testing.harness import MeshHarness

ANN: Final = SigningKey(b"a" * 32)
MBU: Final = 8_000
"""What a job may cost, in thousandths of beats."""


class Budgeted(NamedTuple):
    """The owner's node, another one, and two grants with budgets: the second is delegated from the first."""

    harness: MeshHarness
    owner: MeshNode
    other: MeshNode
    grants: list[str]

    async def schedule(self, *after: Scheduled, **options: Any) -> Scheduled:
        budget = {"max_bu": MBU / 1_000, "thresholds": {"work": 1}}
        with acting_as("bob"):
            return await self.owner.jobs.schedule(
                "work", budget=budget, after=after, backoff="1ms", lease="5s", **options
            )

    async def reserved(self) -> list[int]:
        """What counts of both budgets; the parent's and the delegation's never differ here."""
        found = await read_reserved(self.owner.store, self.grants)
        return [found[each] for each in self.grants]

    async def read(self, sql: str) -> int:
        return int((await self.owner.store.read(sql, fresh=True)).value or 0)

    async def write(self, *statements: str) -> None:
        await self.owner.store.write(Script(*map(Statement, statements)))

    async def spent(self) -> int:
        """What all attempts did cost."""
        return await self.read("SELECT sum(ceil(bu * 1000)) FROM phrase_ends")

    async def take(self, node: MeshNode) -> Any:
        (taken,) = await node.work.take("ann", ["work"], lease=5)
        await self.harness.clock.advance("1s")
        return taken

    async def charge_lost(self) -> None:
        """Wait until the end of an attempt that was not reported is recorded."""
        await self.harness.clock.advance("30s")
        await self.owner.rhythm.budgets.charge_lost("", fresh=True)


@pytest.fixture
async def budgeted() -> AsyncIterator[Budgeted]:
    async with MeshHarness() as harness:
        owner, other = await harness.node("owner"), await harness.node("other")
        await owner.grants.admit("ann", ANN.public)
        await owner.grants.admit("bob")
        lines = ["job.schedule", "job.take"]
        parent = await owner.grants.issue("ann", lines, budget=16, delegations=1)
        child = await owner.grants.delegate(parent.grant_id, "bob", lines[:1], key=ANN, budget=16)
        yield Budgeted(harness, owner, other, [parent.grant_id, child.grant_id])


async def _by_worker(on: Budgeted) -> None:
    """The first attempt fails, and the second one succeeds."""
    seen: list[list[int]] = []

    @on.owner.worker.handles("work")
    async def handle(context: JobContext) -> None:
        await on.harness.clock.advance("1s")
        seen.append(await on.reserved())
        if len(seen) == 1:
            raise ValueError("not yet")

    job = await on.schedule()
    async with on.owner.worker.running():
        assert (await on.owner.jobs.wait(job)).state == "succeeded"
    assert seen == [[MBU, MBU]] * 2  # a retry keeps the reservation


async def _by_report(on: Budgeted) -> None:
    await on.schedule()
    taken = await on.take(on.other)
    await on.other.work.report(taken.job, taken.claim_token, succeeded())


async def _with_its_predecessor(on: Budgeted) -> None:
    first = await on.schedule(max_attempts=1)
    await on.schedule(first)
    assert await on.reserved() == [2 * MBU] * 2
    taken = await on.take(on.owner)
    await on.owner.work.report(taken.job, taken.claim_token, failed("no", retry=False))


async def _by_abort_before_it_begins(on: Budgeted) -> None:
    first = await on.schedule()
    await on.schedule(first)
    await on.owner.jobs.abort(first)


async def _by_abort_while_it_runs(on: Budgeted) -> None:
    job = await on.schedule()
    await on.take(on.owner)
    await on.other.jobs.abort(job)
    assert await on.reserved() == [MBU, MBU]  # what the attempt did cost is not known yet
    await on.charge_lost()


async def _by_expiry(on: Budgeted) -> None:
    job = await on.schedule(max_interruptions=0)
    await on.take(on.other)
    await on.harness.kill("other")
    await on.harness.clock.advance("6s")
    assert (await on.owner.jobs.find(job)).state == "failed"
    await on.charge_lost()


async def _by_an_older_node(on: Budgeted) -> None:
    await on.schedule()
    await on.write("UPDATE jobs SET state = 'aborted', ended_ms = 1")
    await on.owner.catch_up()


async def _by_rebuild(on: Budgeted) -> None:
    """The database has lost the end of the job, which the log still has."""
    job = await on.schedule()
    before = await on.owner.jobs.find(job)
    await on.owner.jobs.abort(job)
    await on.write(
        f"UPDATE jobs SET state = 'pending', ended_ms = NULL, reason = NULL, last_op = '{before.last_op}'",
        f"UPDATE grants SET reserved_mbu = {MBU}",
        "INSERT INTO grant_reservations"
        f" SELECT scope_id, repository_id, '{before.job_id}', grant_id, {MBU} FROM grants",
    )
    assert await on.reserved() == [MBU, MBU]
    assert await Rebuild(on.owner.store, on.owner.oplog).repair()


_WAYS: Final[Mapping[str, tuple[Callable[[Budgeted], Awaitable[None]], bool]]] = {
    "worker": (_by_worker, True),
    "report": (_by_report, True),
    "predecessor": (_with_its_predecessor, True),
    "abort": (_by_abort_before_it_begins, False),
    "abort-running": (_by_abort_while_it_runs, True),
    "expiry": (_by_expiry, True),
    "older-node": (_by_an_older_node, False),
    "rebuild": (_by_rebuild, False),
}


@pytest.mark.parametrize("way", _WAYS)
async def test_what_a_job_did_not_cost_is_returned_once_however_it_ends(budgeted: Budgeted, way: str) -> None:
    end, has_cost = _WAYS[way]
    await end(budgeted)
    spent = await budgeted.spent()
    assert (spent > 0) is has_cost
    for _ in range(2):  # nothing settles it again
        assert await budgeted.reserved() == [spent, spent]
        assert await budgeted.read("SELECT count(*) FROM grant_reservations") == 0
        await budgeted.owner.catch_up()
    await assert_whole(budgeted.owner)


async def test_a_job_that_costs_more_than_it_might_uses_that_of_the_budget(budgeted: Budgeted) -> None:
    job = await budgeted.schedule(max_interruptions=0)
    await budgeted.take(budgeted.owner)
    with acting_as("bob"):
        kept: dict[str, Any] = {"new": False, "budget": {"max_bu": 1, "thresholds": {"work": 1}}}
        again = await budgeted.owner.jobs.schedule("other", **kept)
    await budgeted.write("UPDATE phrase_begins SET began_ms = began_ms - 600000")
    await budgeted.owner.jobs.abort(job)
    await budgeted.charge_lost()
    spent = await budgeted.spent()
    assert spent > 2 * MBU
    assert await budgeted.reserved() == [spent + 1_000] * 2
    with pytest.raises(OverGrantBudget) as refused:
        await budgeted.schedule()
    assert "has 0 of 16 beats left" in refused.value.hint
    with acting_as("bob"):  # it is there, and needs no more
        assert (await budgeted.owner.jobs.schedule("other", **kept)).job_id == again.job_id


async def test_the_reservations_of_a_grant_end_with_it(budgeted: Budgeted) -> None:
    await budgeted.schedule()
    assert await budgeted.read("SELECT count(*) FROM grant_reservations") == 2
    await budgeted.owner.grants.revoke(budgeted.grants[0])
    assert await budgeted.read("SELECT count(*) FROM grant_reservations") == 0


async def test_the_log_shows_that_more_was_scheduled_than_a_budget_had_left(
    budgeted: Budgeted, tmp_path: Path
) -> None:
    await budgeted.schedule()
    taken = await budgeted.take(budgeted.other)
    await budgeted.other.work.report(taken.job, taken.claim_token, succeeded())
    await budgeted.schedule()
    with pytest.raises(OverGrantBudget):
        await budgeted.schedule()
    await assert_whole(budgeted.owner)
    await budgeted.write("UPDATE grants SET reserved_mbu = 0")
    await budgeted.schedule()
    path = tmp_path / "log.jsonl"
    await exported(budgeted.owner, path)
    for reports in (await budgeted.owner.oplog.verify(), verify_export(path).chains):
        (found,) = [each for each in reports if each.problem]
        assert found.node_id == "owner"
        assert f"exceeded the budget of grant {budgeted.grants[0]}" in str(found.problem)
