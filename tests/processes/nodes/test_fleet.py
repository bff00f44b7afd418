"""A fleet of real nodes on one server: many are killed at once, and the others take over, without a herd."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.programs.idle_fleet import IDLE, KILL, LEASE_S, NodeCosts, Takeover
from bench.programs.subprocess_driver import primary, start_program
from tests.support.running.lengths import only_at_full_length
from tools.sqld import Server
from vox_mesh.model.jobs.rendezvous import MAX_PATIENCE_MS

_NODES = 64
_KILLED = 16
_START_S = 300.0
_IDLE_S = 30.0
_SLACK_S = 30.0
"""For 64 processes on a machine with few cores."""

_MOST_REFUSED = (_NODES - _KILLED) / 4
"""For each job, at most: a herd would be all that are left."""


@pytest.mark.soak
@only_at_full_length
@pytest.mark.timeout(900)
async def test_the_jobs_of_killed_nodes_are_taken_over_in_time_and_without_a_herd(tmp_path: Path) -> None:
    with Server() as server:
        async with start_program("programs.idle_fleet", tmp_path, _NODES, *primary(server)) as fleet:
            await fleet.ready(_START_S)
            fleet.send(f"{IDLE} {_IDLE_S}")
            idle = [NodeCosts._make(each) for each in await fleet.report(_IDLE_S)]
            assert len(idle) == _NODES
            fleet.send(f"{KILL} {_KILLED}")
            takeover = Takeover._make(await fleet.report(_START_S))
    assert takeover.lost >= _KILLED / 2, "the nodes were not busy"
    assert len(takeover.delays_s) == takeover.lost, "jobs were lost"
    assert max(takeover.delays_s) < LEASE_S + MAX_PATIENCE_MS / 1_000 + _SLACK_S
    assert takeover.refused < _MOST_REFUSED * takeover.lost
