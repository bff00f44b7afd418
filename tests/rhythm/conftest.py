"""What tests of the rhythm are given: nodes on each home, a clock to move, a database that can go away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.messages.messaging import NodeGroup, crowd_on
from tests.support.oplog.authoring import RestartableNodes, scene
from tests.support.rhythm.grounds import ClockedReporter, MovableClock, player
from tests.support.running.lengths import LOCAL_AND_REPLICA
from tools.homes import HomeCase


@pytest.fixture(params=LOCAL_AND_REPLICA, ids=str)
async def crowd(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[NodeGroup]:
    """Any number of nodes on each home in turn."""
    case: HomeCase = request.param
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    async with crowd_on(case, tmp_path, server) as crowd:
        yield crowd


@pytest.fixture
def hand() -> MovableClock:
    """The clock of a test."""
    return MovableClock()


@pytest.fixture
async def there() -> AsyncIterator[RestartableNodes]:
    """A database in memory, behind a gate that loses what it is asked to."""
    async with scene() as there:
        yield there


@pytest.fixture
async def one(there: RestartableNodes, hand: MovableClock) -> AsyncIterator[ClockedReporter]:
    """One node on that database, which has looked in the first bar."""
    async with there.node() as node:
        await node.run_once()
        one = player(node, hand)
        assert await one.bar_reporter.roll_up_due() == []
        yield one
