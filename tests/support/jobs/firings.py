"""Firings of crons and rules by several nodes: each schedules its jobs once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from tests.support.jobs.jobs_in_hand import ops
from tests.support.oplog.authoring import RestartableNodes, assert_sound
from vox_mesh.mesh import Mesh
from vox_mesh.model.jobs.records import SCHEDULE


async def assert_scheduled_once(mesh: Mesh, jobs: int, refusal: str) -> None:
    """This many jobs were scheduled, nodes that came later were refused, and the log is sound."""
    entries = await ops(mesh, SCHEDULE)
    assert sum(entry.accepted for entry in entries) == jobs
    assert {entry.reason for entry in entries if not entry.accepted} <= {refusal}
    await assert_sound(mesh)


async def fire_around(
    there: RestartableNodes, killed: Coroutine[Any, Any, list[str]], fire: Coroutine[Any, Any, list[str]]
) -> str:
    """Fire while the firing of a killed node is under way, which then comes late; return the job scheduled.

    The caller releases the gate.
    """
    there.gate.hold()
    firing = asyncio.create_task(killed)
    await there.gate.arrival()
    late = there.gate.batches[-1]
    firing.cancel()
    there.gate._is_held = False  # what stands at the gate stays there
    (job_id,) = await fire
    assert not await there.gate.land(late)
    return job_id
