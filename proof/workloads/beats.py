"""Beats: each node listens to its downbeats, and has activity to report in each bar."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

from proof.workload import FunctionWorkload, Pace, WorkloadContext
from vox_mesh.model.rhythm.plan import BeatFrame

_BAR_BEATS: Final = 4
_MINUTE_S: Final = 60.0


def tempo_of(pace: Pace) -> str:
    """Return a tempo policy (a file for `Settings.tempo_policy`) with one beat for each tick."""
    return (
        f"cluster_id: proof\ninitial_bpm: {_MINUTE_S / pace.tick_s:g}\nbar_len_beats: {_BAR_BEATS}\n"
        "adaptation: {enable: false}\n"
    )


async def run(context: WorkloadContext) -> None:
    """Listen to downbeats."""
    async with asyncio.TaskGroup() as group:
        listening = group.create_task(_listen(context))
        await context.over.wait()
        listening.cancel()


async def _listen(context: WorkloadContext) -> None:
    async with aclosing(context.mesh.rhythm.beats()) as beats:
        async for frame in beats:
            if frame.downbeat:
                context.recorder.note("beat.down", **_about(context, frame))
                context.mesh.rhythm.status.claim(context.who, f"bar {frame.epoch_ms}", "done")


def _about(context: WorkloadContext, frame: BeatFrame) -> dict[str, str | int]:
    clock = context.mesh.clock
    return {
        "epoch_ms": frame.epoch_ms,
        "bar_ms": frame.beat_ms * frame.bar_len_beats,
        "policy": frame.policy_hash,
        "now_ms": clock.now_ms,
        "is_set": clock.is_set,
        "distance_ms": clock.distance_ms,
    }


BEATS: Final = FunctionWorkload("beats", run)
