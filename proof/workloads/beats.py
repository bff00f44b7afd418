"""Beats: each player listens to the downbeats of its node, and has something to report of each bar."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

from proof.scene import Pace, Part, Scene
from vox_mesh.model.rhythm.plan import BeatFrame

_BAR_BEATS: Final = 4
_MINUTE_S: Final = 60.0


def tempo_of(pace: Pace) -> str:
    """A policy for the nodes of a run (`Settings.tempo_policy` names a file of it): a beat for each tick."""
    return (
        f"cluster_id: proof\ninitial_bpm: {_MINUTE_S / pace.tick_s:g}\nbar_len_beats: {_BAR_BEATS}\n"
        "adaptation: {enable: false}\n"
    )


async def act(scene: Scene) -> None:
    """Listen."""
    async with asyncio.TaskGroup() as group:
        listening = group.create_task(_listen(scene))
        await scene.over.wait()
        listening.cancel()


async def _listen(scene: Scene) -> None:
    async with aclosing(scene.mesh.rhythm.beats()) as beats:
        async for frame in beats:
            if frame.downbeat:
                scene.recorder.note("beat.down", **_about(scene, frame))
                scene.mesh.rhythm.status.claim(scene.who, f"bar {frame.epoch_ms}", "done")


def _about(scene: Scene, frame: BeatFrame) -> dict[str, str | int]:
    clock = scene.mesh.clock
    return {
        "epoch_ms": frame.epoch_ms,
        "bar_ms": frame.beat_ms * frame.bar_len_beats,
        "policy": frame.policy_hash,
        "now_ms": clock.now_ms,
        "is_set": clock.is_set,
        "distance_ms": clock.distance_ms,
    }


BEATS: Final = Part("beats", act)
