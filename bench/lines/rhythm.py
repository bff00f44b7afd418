"""Lines on the rhythm: how punctual beats are, what agents' claims cost, and a bar with many of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench import workload
from bench.environment import BenchEnvironment, Rounds, writing
from bench.figures import Figure, Of, at_most
from bench.limits import raw_limit
from bench.measure import p99, rate
from tools.homes import FILE, MESH, HomeCase
from tools.sqld import Server
from vox_mesh import Mesh
from vox_mesh.model.rhythm.plan import Plan, PlanEntry
from vox_mesh.model.rhythm.policy import TempoPolicy
from vox_mesh.model.rhythm.tempo import Metronome, Tempo, Timeline
from vox_mesh.nodes.clock import Dependencies, MeshClock
from vox_mesh.rhythm.bar_reporter import BarReporter
from vox_mesh.rhythm.context import RhythmContext, Times
from vox_mesh.rhythm.status_claims import StatusClaimWriter
from vox_mesh.rhythm.tempo.pulse import Pulse

_CLAIMS: Final = 10_000
_STATES: Final = ("planning", "executing", "waiting", "review")
_GRACE_MS: Final = 2_000
_NODES: Final = 4
_AGENTS: Final = 100
_CALLERS: Final = 64
_FAST: Final = TempoPolicy.of_document({"cluster_id": "bench", "initial_bpm": 600.0})
_BEATS: Final = 200
_HOUR_MS: Final = 3_600_000


class _Clock:
    """A clock that is turned from beat to beat."""

    def __init__(self) -> None:
        self.now_ms = time.time_ns() // 1_000_000


@asynccontextmanager
async def _open_node(
    folder: Path, home: HomeCase, server: Server | None
) -> AsyncIterator[tuple[_Clock, RhythmContext]]:
    """A node of the rhythm on a home, by a clock of its own."""
    bar_clock = _Clock()
    async with Mesh.open(home.settings(folder, server, tick="1h")) as node:
        clock = MeshClock(Dependencies(lambda: bar_clock.now_ms, lambda: bar_clock.now_ms / 1_000))
        clock.name(node.identity.chain)
        plan = Plan(PlanEntry.of(TempoPolicy.built_in("bench")))
        yield (
            bar_clock,
            RhythmContext(
                node.store, node.rhythm.context.writer, clock, Times(clock), node.permits, None, plan
            ),
        )


async def _fill_bar(bar_clock: _Clock, context: RhythmContext, writer: StatusClaimWriter) -> None:
    """Have as many agents claim in each beat of a bar that there are 10,000 claims in it, and let it end."""
    beat = context.beat()
    agents = _CLAIMS // beat.bar_len
    for number in range(beat.bar_len):
        bar_clock.now_ms = beat.window_ms + number * beat.beat_ms + 1
        for agent in range(agents):
            state = _STATES[(agent + number) % len(_STATES)] if number < beat.bar_len - 1 else "done"
            writer.claim(f"agent-{agent}", f"task-{agent}", state, progress=number / beat.bar_len)
        await writer.flush()
    bar_clock.now_ms = beat.window_ends_ms + _GRACE_MS


async def _roll_ups(environment: BenchEnvironment, home: HomeCase, server: Server | None) -> Rounds:
    took: list[float] = []
    inserts: list[float] = []
    async with (
        _open_node(environment.folder, home, server) as (bar_clock, context),
        raw_limit(environment.folder, server, environment.pace.seconds) as raw,
    ):
        writer, reporter = StatusClaimWriter(context), BarReporter(context)
        for number in range(environment.pace.rounds + 1):
            await _fill_bar(bar_clock, context, writer)
            began = time.perf_counter()
            reports = await reporter.roll_up_due()
            if number:  # the first bar has none before it
                took.append((time.perf_counter() - began) * 1e3)
                inserts.append(await raw.p50_ms())
            if sum(reports[-1].beats.values()) != _CLAIMS:
                raise RuntimeError(f"the report has not all claims: {reports}")
    return {"ours": took, "raw": inserts}


async def roll_up(environment: BenchEnvironment) -> list[Figure]:
    """Measure from the query of due bars until the report is written, in a file and on a server."""
    figures = []
    for name, home, server in (("file", FILE, None), ("sqld", MESH, environment.sqld)):
        found = await _roll_ups(replace(environment, folder=environment.folder / name), home, server)
        what = f"{name}: a bar with {_CLAIMS:,} claims, its report made and written / a raw insert"
        target = at_most(50.0, Of.OURS)
        figures.append(Figure(f"rhythm-roll-up-{name}", what, "ms", found["ours"], found["raw"], target))
    return figures


# --- beats -------------------------------------------------------------------------------------------


async def lateness(environment: BenchEnvironment) -> list[Figure]:
    """Measure from the start of a beat until a listener has its frame."""
    figures = []
    for name, most_ms, callers in (("idle", 5.0, 0), ("loaded", 20.0, _CALLERS)):
        own = replace(environment, folder=environment.folder / name)
        rounds = [p99(await _late_ms(own, callers)) for _ in range(environment.pace.few_rounds)]
        what = f"{name} node: a beat's frame at its listener after the beat has begun, p99"
        figures.append(Figure(f"rhythm-beat-{name}", what, "ms", rounds, target=at_most(most_ms, Of.OURS)))
    return figures


async def _late_ms(environment: BenchEnvironment, callers: int) -> list[float]:
    """Return how late each of many beats was, with this many writers on the same store."""
    beats = max(10, round(_BEATS * environment.pace.seconds))
    async with (
        environment.store(FILE) as store,
        Mesh.open(FILE.settings(environment.folder, None, tick="1h")) as node,
    ):
        clock = MeshClock(Dependencies())
        context = RhythmContext(
            node.store,
            node.rhythm.context.writer,
            clock,
            Times(clock),
            node.permits,
            None,
            Plan(PlanEntry.of(_FAST)),
        )
        seconds = (beats + 1) * 60 / _FAST.initial_bpm
        load = (
            asyncio.create_task(rate(writing(store, workload.one_insert), seconds, callers))
            if callers
            else None
        )
        found: list[float] = []
        async with aclosing(Pulse(context).beats()) as frames:
            async for _ in frames:
                now_ms = time.time_ns() / 1e6
                found.append(now_ms - context.timeline.beat_at(int(now_ms)).epoch_ms)
                if len(found) == beats:
                    break
        if load is not None:
            await load
    return found


async def drift(environment: BenchEnvironment) -> list[Figure]:
    """By how many beats one who looked at every beat of an hour is off from one who looks at its end."""
    off = []
    for bpm in (7.0, 12.0, 17.3)[: environment.pace.rounds]:
        timeline = Timeline([Tempo(bpm, 8)])
        begin_ms = timeline.window_at(time.time_ns() // 1_000_000).start_ms
        metronome, count = Metronome(begin_ms), 0
        for passed_ms in (*range(0, _HOUR_MS, 137), _HOUR_MS):  # at random moments
            count += len(list(metronome.beats(timeline, begin_ms + passed_ms)))
        off.append(abs(count - _HOUR_MS // timeline.last.beat_ms))
    what = "beats told in an hour of simulated time, off from those derived at its end"
    return [Figure("rhythm-drift", what, "beats", off, target=at_most(0.0, Of.OURS), worst=True)]


async def writes(environment: BenchEnvironment) -> list[Figure]:
    """What a hundred agents who claim in every beat cost four nodes."""
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(
                _open_node(environment.folder / f"node-{n}", MESH, environment.sqld)
            )
            for n in range(_NODES)
        ]
        writers = [StatusClaimWriter(context) for _, context in nodes]
        found = []
        for number in range(environment.pace.rounds):
            before = sum(context.store.stats.requests["write"] for _, context in nodes)
            for agent in range(_AGENTS):
                writers[agent % _NODES].claim(f"agent-{agent}", "task", "executing", progress=number / 100)
            await asyncio.gather(
                *(
                    writer.run_once(context.beat())
                    for writer, (_, context) in zip(writers, nodes, strict=True)
                )
            )
            after = sum(context.store.stats.requests["write"] for _, context in nodes)
            found.append((after - before) / _NODES)
            for bar_clock, context in nodes:
                bar_clock.now_ms += context.beat().beat_ms
    what = f"{_AGENTS} agents on {_NODES} nodes: writes for each node and beat"
    return [Figure("rhythm-writes", what, "1", found, target=at_most(1.0, Of.OURS), worst=True)]
