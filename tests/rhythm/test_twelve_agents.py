"""Twelve agents on four nodes keep the phases of the mesh, one waits forever, and a batch runs in review."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Final

import orjson

from tests.rhythm.orchestra import START_MS, SkewedNodes, orchestra
from tests.support.messages.messaging import PATIENCE_S
from vox_mesh import JobContext
from vox_mesh.errors import WaitExhausted
from vox_mesh.node import MeshNode
from vox_mesh.rhythm.phrases.phrase import Phrase

_NODES: Final = ("a", "b", "c", "d")
_AGENTS: Final = 3  # on each node
_BARS: Final = 2
_HALF_MS: Final = 500  # of a beat
_POLICY: Final = "{cluster_id: east, initial_bpm: 60, bar_len_beats: 8}"
_SCORE: Final = "score:\n  start: downbeat\n"
_STEPS: Final = {0: "plan", 3: "-", 4: "work", 11: "-", 12: "review", 15: "done"}
_STEPS_OF_WAITING: Final = {0: "plan", 3: "-", 4: "work", 8: "failed"}
"""By half beats of a bar: when an agent begins and ends a phase, half a beat early, and then its phrase."""
_MOMENTS: Final = sorted({*range(0, 16, 2), *_STEPS})
_REVIEW: Final = 12


class Agent:
    """An agent that plays one phrase in each bar, as the score says."""

    def __init__(self, node: MeshNode, name: str, *, waits_forever: bool) -> None:
        self._node = node
        self._name = name
        self._waits_forever = waits_forever
        self.steps = _STEPS_OF_WAITING if waits_forever else _STEPS
        self.done = asyncio.Queue[str]()

    async def run(self) -> None:
        """Play until cancelled."""
        while True:
            phrase = self._node.rhythm.phrase(_SCORE, task=self._name, agent=self._name)
            try:
                async with phrase:
                    await self._play(phrase)
            except WaitExhausted:
                pass
            self.done.put_nowait(str(phrase.outcome))

    async def _play(self, phrase: Phrase) -> None:
        for phase in (phrase.plan(), phrase.work(), phrase.review()):
            async with phase:
                self.done.put_nowait(phase.name)
                if phase.name == "work" and self._waits_forever:
                    await phrase.wait_for(asyncio.Event().wait(), budget="help")
                await phrase.times.until(phase.ends_ms - _HALF_MS)
            if phase.name != "review":
                self.done.put_nowait("-")
                await phrase.times.until(phase.ends_ms)


async def starts_of(node: MeshNode) -> list[int]:
    """Return when the attempts at jobs began, by the op log: the beat, counted from 0."""
    sql = "SELECT payload FROM agent_oplog WHERE kind = 'StartWork' AND accepted = 1 ORDER BY id"
    payloads = [orjson.loads(row["payload"]) for row in await node.store.read(sql, fresh=True)]
    return [(each["at_ms"] - START_MS) // (2 * _HALF_MS) for each in payloads]


async def test_all_agents_share_the_phases_every_bar_is_reported_and_a_batch_runs_only_in_review(
    tmp_path: Path,
) -> None:
    (tmp_path / "tempo.yaml").write_text(_POLICY)
    settings = {"tempo_policy": tmp_path / "tempo.yaml", "tick": "1s"}
    batches = asyncio.Queue[JobContext]()
    async with (
        asyncio.timeout(PATIENCE_S),
        orchestra(tmp_path, **settings) as nodes,
        asyncio.TaskGroup() as group,
    ):
        agents = await _begin(nodes, batches)
        playing = [group.create_task(each.run()) for each in agents]
        for _ in range(_BARS):
            for before, half in pairwise((-1, *_MOMENTS)):
                await nodes.turn((half - before) * _HALF_MS)
                for agent in agents:
                    if half in agent.steps:
                        assert await agent.done.get() == agent.steps[half]
                    assert agent.done.empty()
                phases = {each.playing.rhythm.frame().phase for each in nodes.living}
                assert phases == {("plan", "work", "work", "review")[half // 4]}
                if half == _REVIEW:  # the batch of the bar begins and ends before the beat does
                    await nodes.players["a"].playing.jobs.wait((await batches.get()).job)
        for task in playing:
            task.cancel()
        await _are_reported(nodes)
        starts = await starts_of(nodes.players["a"].playing)
        assert (len(starts), {beat % 8 in (6, 7) for beat in starts}) == (_BARS, {True})


async def _begin(nodes: SkewedNodes, batches: asyncio.Queue[JobContext]) -> list[Agent]:
    """Have four nodes begin, each with a worker and three agents, and be at the end of a bar."""
    for name in _NODES:
        assert await nodes.begin(name)
    for halves in (*[4] * 7, 3):
        await nodes.turn(halves * _HALF_MS)

    async def ingest(context: JobContext) -> None:
        batches.put_nowait(context)

    for player in nodes.living:
        player.playing.worker.handles("ingest")(ingest)
        await player.playing.worker.start()
    await nodes.players["a"].playing.crons.add("ingest", "every bar", {"kind": "ingest", "during": "review"})
    return [
        Agent(nodes.players[name].playing, f"{name}{place}", waits_forever=(name, place) == ("c", 1))
        for name in _NODES
        for place in range(_AGENTS)
    ]


async def _are_reported(nodes: SkewedNodes) -> None:
    """Check the report of each bar in which the agents played, on each node."""
    for _ in range(4):
        await nodes.turn(2 * _HALF_MS)
    others = len(_NODES) * _AGENTS - 1
    states = {"planning": 2, "executing": 4, "review": 1, "done": 1}
    beats = Counter({state: count * others for state, count in states.items()})
    beats.update(planning=2, waiting=2, failed=1, done=1)  # the batch has no score, and counts as done
    views = [await each.playing.rhythm.bar_reporter.reports(_BARS + 2, fresh=True) for each in nodes.living]
    assert all(view == views[0] for view in views)
    reports = [each for each in views[0] if each.reporters][::-1]
    assert len(reports) == _BARS
    for report in reports:
        assert report.beats == dict(beats)
        assert (report.reporters, report.deliverables, report.overruns) == (others + 1, others + 1, 0)
        assert report.tasks == {"done": others, "failed": 1}
        assert report.phrases == {"done": others, "failed": 1}
