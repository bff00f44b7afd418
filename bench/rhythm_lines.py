"""Lines on the rhythm: what a bar with many claims costs whoever rolls it up."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.figures import Figure, Of, at_most
from bench.ground import Ground
from tools.homes import FILE, MESH, HomeCase
from tools.sqld import Server
from vox_mesh import Mesh
from vox_mesh.coordination.clock import MeshClock, Surroundings
from vox_mesh.model.rhythm.plan import Entry, Plan
from vox_mesh.model.rhythm.policy import TempoPolicy
from vox_mesh.rhythm.ground import Ground as Footing
from vox_mesh.rhythm.reverb import Reverb
from vox_mesh.rhythm.status import StatusDesk
from vox_mesh.rhythm.times import Times

_CLAIMS: Final = 10_000
_STATES: Final = ("planning", "executing", "waiting", "review")
_GRACE_MS: Final = 2_000


class _Hand:
    """A clock that is turned from beat to beat."""

    def __init__(self) -> None:
        self.now_ms = time.time_ns() // 1_000_000


@asynccontextmanager
async def _stage(folder: Path, home: HomeCase, server: Server | None) -> AsyncIterator[tuple[_Hand, Footing]]:
    """A node of the rhythm on a home, by a clock of its own."""
    hand = _Hand()
    async with Mesh.open(home.settings(folder, server, tick="1h")) as node:
        clock = MeshClock(Surroundings(lambda: hand.now_ms, lambda: hand.now_ms / 1_000))
        clock.name(node.identity.chain)
        plan = Plan([Entry.of(TempoPolicy.built_in("bench"))])
        yield hand, Footing(node.store, node._author, clock, Times(clock), None, plan)


async def _play_bar(hand: _Hand, footing: Footing, desk: StatusDesk) -> None:
    """Have as many agents claim in each beat of a bar that there are 10,000 claims in it, and let it end."""
    beat = footing.beat()
    agents = _CLAIMS // beat.bar_len
    for number in range(beat.bar_len):
        hand.now_ms = beat.window_ms + number * beat.beat_ms + 1
        for agent in range(agents):
            state = _STATES[(agent + number) % len(_STATES)] if number < beat.bar_len - 1 else "done"
            desk.claim(f"agent-{agent}", f"task-{agent}", state, progress=number / beat.bar_len)
        await desk.flush()
    hand.now_ms = beat.window_ends_ms + _GRACE_MS


async def _roll_ups(ground: Ground, home: HomeCase, server: Server | None) -> list[float]:
    took = []
    async with _stage(ground.folder / str(home), home, server) as (hand, footing):
        desk, reverb = StatusDesk(footing), Reverb(footing)
        for number in range(ground.pace.rounds + 1):
            await _play_bar(hand, footing, desk)
            began = time.perf_counter()
            reports = await reverb.roll_up_due()
            if number:  # the first bar has none before it
                took.append((time.perf_counter() - began) * 1e3)
            if sum(reports[-1].beats.values()) != _CLAIMS:
                raise RuntimeError(f"the report has not all claims: {reports}")
    return took


async def roll_up(ground: Ground) -> list[Figure]:
    """From the question what is due until the report is written, in a file and on a server."""
    figures = []
    for name, home, server in (("file", FILE, None), ("sqld", MESH, ground.sqld)):
        took = await _roll_ups(replace(ground, folder=ground.folder / name), home, server)
        what = f"{name}: a bar with {_CLAIMS:,} claims rolled up into its report, and that written"
        figures.append(Figure(f"rhythm-roll-up-{name}", what, "ms", took, target=at_most(50.0, Of.OURS)))
    return figures
