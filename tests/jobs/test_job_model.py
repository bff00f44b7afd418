"""Nodes that do anything to jobs in any order: what is accepted, and what follows, is what the rules say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import orjson
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
)

from tests.support.jobs.job_oracle import Oracle, Verdict
from tests.support.jobs.staging import LAPSED_MS, LEASE_MS, held, item_of, lapse, moved
from tests.support.messages.messaging import PATIENCE_S, crowd_on, database_ms, write
from tests.support.nodes.shared_mesh import assert_whole
from tests.support.running import lengths
from tests.support.running.walks import walk
from tools.homes import FILE, MEMORY, MESH, MESH_REPLICA, HomeCase
from tools.sqld import Server
from vox_mesh.errors import Refused
from vox_mesh.jobs.rebuild import Rebuild
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.records import HELD, JOB_OPS, JobState
from vox_mesh.store.script import Op, Outcome, Script, new_key

_NODES: Final = ("one", "two")
_KINDS: Final = ("a.x", "a.y", "b")
_LIMITS: Final = {"b": 2}
_PATTERNS: Final = ("a.*", "a.x", "b")
_AWAITED: Final = ("success", "end", "success")
_LATER_MS: Final = 3_600_000
_SOON_MS: Final = 1_000
_LISTED: Final = 10_000

_SCHEDULING: Final = 4 * ["schedule"] + ["schedule_again", "come", "route"]
_HOLDING: Final = 6 * ["claim"] + 5 * ["start"] + ["renew", "lapse", "lapse", "come_due"]
_ENDING: Final = 5 * ["complete"] + 3 * ["give_back"] + ["expire", "expire", "abort"]


_FIRST: Final = {
    "claim": "schedule",
    "start": "claim",
    "complete": "start",
    "give_back": "claim",
    "renew": "claim",
    "lapse": "claim",
    "expire": "lapse",
}
"""What comes before a step that there are no jobs for."""


class Act(NamedTuple):
    """What is done next. There is one rule for all: a walk in which some are left out leads nowhere."""

    what: str
    name: str
    numbers: list[int]
    skew: int
    flags: int

    def flag(self, bit: int) -> bool:
        """One of its flags."""
        return bool(self.flags >> bit & 1)

    @property
    def is_wise(self) -> bool:
        """Whether it is done to jobs, and by a node, where it makes sense."""
        return self.numbers[0] % 6 < 5


acts = st.builds(
    Act,
    what=st.sampled_from(_SCHEDULING + _HOLDING + _ENDING),
    name=st.sampled_from(_NODES),
    numbers=st.lists(st.integers(0, 2**10), min_size=3, max_size=3),
    skew=st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1]),
    flags=st.integers(0, 2**10),
)


class JobWalk(RuleBasedStateMachine):
    """Two nodes and a handful of jobs; after each step the database shows what the oracle says."""

    case: ClassVar[HomeCase]
    folder: ClassVar[Path]
    server: ClassVar[Server | None]
    walks: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._oracle = Oracle(_LIMITS)
        self._items: list[dict[str, Any]] = []
        self._awaited: list[str] = []
        self._verdicts: dict[str, str | None] = {}
        self._by_hand: set[tuple[str, str]] = set()  # of which the log can't know
        self._is_sound = True

    def _run(self, step: Coroutine[Any, Any, None]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await step
                await self._compare()

        self._is_sound = False
        self._runner.run(bounded())
        self._is_sound = True

    @initialize()
    def begin(self) -> None:
        """Open the mesh; one kind of job has a limit."""
        own = type(self)
        own.walks += 1
        self._context = crowd_on(own.case, own.folder / str(own.walks), own.server)

        async def begin() -> None:
            crowd = await self._context.__aenter__()
            self._nodes = {name: await crowd.node(name) for name in _NODES}
            sql = "INSERT INTO job_kinds (scope_id, repository_id, kind, max_running) VALUES (?1, ?2, ?3, ?4)"
            for kind, limit in _LIMITS.items():
                await write(self._nodes["one"], sql, kind, limit)

        self._runner.run(begin())

    def teardown(self) -> None:
        """See that the log tells the same, and leave the mesh, whatever happened."""
        try:
            if self._is_sound:
                self._runner.run(self._look_back())
        finally:
            try:
                self._runner.run(self._context.__aexit__(None, None, None))
            finally:
                self._runner.close()

    # --- what is compared ------------------------------------------------------------------------

    async def _compare(self) -> None:
        sql = "SELECT * FROM jobs WHERE scope_id = ?1 AND repository_id = ?2 ORDER BY id"
        one = self._nodes["one"]
        rows = await one.store.read(sql, one.store.mesh_id, fresh=True)
        assert {row["job_id"]: _seen(row) for row in rows} == self._oracle.seen()
        assert [row["job_id"] for row in rows] == list(self._oracle.tasks)

    async def _look_back(self) -> None:
        one = self._nodes["one"]
        await one.store.synced()
        rebuild = Rebuild(one.store)
        differences = [
            each
            for each in await rebuild.check()
            if each[1:3] != ("lease_until_ms", LAPSED_MS) and each[:2] not in self._by_hand
        ]
        assert (differences, rebuild.findings) == ([], [])
        counted: dict[str, dict[str, int]] = {}
        for task in self._oracle.tasks.values():
            of_kind = counted.setdefault(task.kind, {})
            of_kind[task.state.value] = of_kind.get(task.state.value, 0) + 1
        assert await one.jobs.queries.counts() == counted
        entries = [entry for entry in await one.oplog.tail(_LISTED) if entry.kind in JOB_OPS]
        assert {entry.op_id: entry.reason for entry in entries} == self._verdicts
        await assert_whole(one)

    # --- how a step is made ----------------------------------------------------------------------

    @rule(act=acts)
    def step(self, act: Act) -> None:
        """Do anything."""
        what = act.what
        while act.is_wise and what in _FIRST and not self._has_work_for(what):
            what = _FIRST[what]
        getattr(self, f"_{what if self._oracle.tasks else 'schedule'}")(act)

    def _has_work_for(self, what: str) -> bool:
        """Whether there are jobs for which a step makes sense; if not, the one before it comes first."""
        oracle = self._oracle
        match what:
            case "claim":
                return any(oracle.is_ready(task, task.not_before_ms) for task in oracle.tasks.values())
            case "start":
                return bool(oracle.those(JobState.CLAIMED))
            case "complete":
                return bool(oracle.those(JobState.RUNNING))
            case "expire":
                return any(task.is_held and task.has_lapsed for task in oracle.tasks.values())
        return bool(oracle.those(*HELD))

    def _some(self, act: Act, wanted: Sequence[str]) -> list[str]:
        """Up to three of the jobs that are wanted, now and then one twice; or any."""
        if not wanted or not act.is_wise:
            wanted = list(self._oracle.tasks)
        return [wanted[number % len(wanted)] for number in act.numbers[act.flags % 3 :]]

    def _own(self, act: Act, *states: JobState) -> tuple[str, list[str]]:
        """A node, and some jobs that it has in hand."""
        wanted = self._oracle.those(*states)
        name = self._oracle.tasks[wanted[act.numbers[0] % len(wanted)]].claimer if wanted else None
        if name is None or not act.is_wise:
            return act.name, self._some(act, wanted)
        return name, self._some(act, [each for each in wanted if self._oracle.tasks[each].claimer == name])

    def _held(self, job_ids: Sequence[str], skew: int, **more: Any) -> list[dict[str, Any]]:
        return [held(job_id, self._oracle.tasks[job_id].token + skew, **more) for job_id in job_ids]

    def _now_ms(self) -> int:
        return self._runner.run(database_ms(self._nodes["one"]))

    def _try(self, name: str, script: Script, expected: Callable[[int], Verdict]) -> None:
        """Have a node write a script, and compare its verdict with what the oracle says of that time."""
        assert script.op is not None
        verdict = expected(orjson.loads(script.op.payload)["at_ms"])

        async def step() -> None:
            (reported,) = await self._nodes[name].store.write_all([script])
            if isinstance(reported, Outcome):
                assert isinstance(verdict, list), verdict
                assert sorted(moved(reported) if reported.rows else []) == sorted(verdict)
            else:
                assert isinstance(reported, Refused), reported
                assert reported.reason == verdict
            self._verdicts[script.key] = None if isinstance(reported, Outcome) else reported.reason

        self._run(step())

    # --- scheduling ------------------------------------------------------------------------------

    def _schedule(self, act: Act) -> None:
        """Schedule jobs, each of which may wait for some that are there or come with it."""
        items: list[dict[str, Any]] = []
        for number in act.numbers:
            known = [*self._oracle.tasks, *(item["job_id"] for item in items)]
            more: dict[str, Any] = {"max_attempts": 1 + number % 3, "max_interruptions": number % 3}
            links: dict[str, str] = {}
            if known and act.flag(number % 5):
                links = {known[-1 - each % min(len(known), 6)]: _AWAITED[each % 3] for each in act.numbers}
            if act.flag(5) and act.flag(6):
                links[self._op_id()] = "op"
            if links:
                more["after"] = list(links.items())
            if act.flag(7) and act.flag(8):
                more["run_at_ms"] = self._now_ms() + _LATER_MS
            kind = _KINDS[number % len(_KINDS)]
            items.append(item_of(Manifest.of(kind=kind, payload=None, nonce=new_key()), **more))
        self._schedule_all(act.name, items[: 1 + act.flags % 3])

    def _op_id(self) -> str:
        if not self._awaited or self._awaited[-1] in self._oracle.ops:
            self._awaited.append(new_key())
        return self._awaited[-1]

    def _schedule_again(self, act: Act) -> None:
        """Schedule what was scheduled before: it stays unchanged. What was refused may now be accepted."""
        again = [self._items[number % len(self._items)] for number in act.numbers]
        self._schedule_all(act.name, [{**item, "ulid": new_key()} for item in again])

    def _schedule_all(self, name: str, items: list[dict[str, Any]]) -> None:
        script = self._nodes[name].jobs.transitions.schedule(items)
        self._items += items
        self._try(name, script, lambda at_ms: self._oracle.schedule(items, at_ms))

    def _come(self, act: Act) -> None:
        """Have an op come that jobs may wait for."""
        op_id = self._op_id()
        self._oracle.ops.add(op_id)

        async def step() -> None:
            await self._nodes[act.name].store.write(Script(key=op_id, op=Op("test.note", "{}")))

        self._run(step())

    def _route(self, act: Act) -> None:
        """Route kinds to a node, or to no one in particular."""
        pattern, to = _PATTERNS[act.flags % 3], [*_NODES, None][act.numbers[0] % 3]
        self._oracle.routes[pattern] = to

        async def step() -> None:
            await self._nodes["one"].roles.route_kind(pattern, to)

        self._run(step())

    # --- holding ---------------------------------------------------------------------------------

    def _claim(self, act: Act) -> None:
        """Claim jobs."""
        now_ms = self._now_ms()
        while any(now_ms < task.not_before_ms < now_ms + _SOON_MS for task in self._oracle.tasks.values()):
            now_ms = self._now_ms()  # the author of a job may be ahead of the database, by very little
        ready = [task for task in self._oracle.tasks.values() if self._oracle.is_ready(task, now_ms)]
        items = self._held(self._some(act, [task.job_id for task in ready]), act.skew + 1)
        node = self._nodes[act.name]
        routing = self._runner.run(node.roles.routing())
        script = node.jobs.transitions.claim(items, LEASE_MS, routing)
        self._try(act.name, script, lambda _: self._oracle.claim(act.name, items, now_ms))

    def _renew(self, act: Act) -> None:
        """Renew leases."""
        name, jobs = self._own(act, *HELD)
        items = self._held(jobs, act.skew)
        script = self._nodes[name].jobs.transitions.renew(items, LEASE_MS)
        self._try(name, script, lambda _: self._oracle.renew(name, items))

    def _start(self, act: Act) -> None:
        """Start to work."""
        name, jobs = self._own(act, JobState.CLAIMED)
        items = self._held(jobs, act.skew)
        script = self._nodes[name].jobs.transitions.start(items)
        self._try(name, script, lambda at_ms: self._oracle.start(name, items, at_ms))

    def _lapse(self, act: Act) -> None:
        """Have leases run out."""
        jobs = self._some(act, self._oracle.those(*HELD))
        for job_id in jobs:
            self._oracle.tasks[job_id].has_lapsed = True
        self._run(lapse(self._nodes["one"], *jobs))

    def _come_due(self, _: Act) -> None:
        """Have the time come of all that is to be done later."""
        now_ms = self._now_ms()
        for task in self._oracle.tasks.values():
            if task.not_before_ms > now_ms:
                task.not_before_ms = LAPSED_MS
                self._by_hand.add((task.job_id, "not_before_ms"))
        sql = "UPDATE jobs SET not_before_ms = ?4 WHERE scope_id = ?1 AND repository_id = ?2"
        self._run(write(self._nodes["one"], f"{sql} AND not_before_ms > ?3", now_ms, LAPSED_MS))

    # --- ending ----------------------------------------------------------------------------------

    def _complete(self, act: Act) -> None:
        """Complete jobs, well or not."""
        name, jobs = self._own(act, JobState.RUNNING)
        items = self._held(jobs, act.skew, output_artifacts=[{"n": act.flags}])
        for place, item in enumerate(items):
            item |= {
                "state": "failed" if act.flag(place) and act.flag(3) else "succeeded",
                "exit_code": place,
            }
        script = self._nodes[name].jobs.transitions.complete(items)
        self._try(name, script, lambda at_ms: self._oracle.complete(name, items, at_ms))

    def _give_back(self, act: Act) -> None:
        """Yield jobs, for now or for later; by their holder, or by hand."""
        name, jobs = self._own(act, *HELD)
        more: dict[str, Any] = {
            "failed": act.flag(3),
            "interrupted": act.flag(2),
            "reason": f"of {act.flags}",
        }
        if act.flag(4):
            more["not_before_ms"] = self._now_ms() + _LATER_MS
        items = self._held(jobs, act.skew, **more)
        claimer = None if act.flag(5) else name
        script = self._nodes[name].jobs.transitions.yield_jobs(items, claimer=claimer)
        self._try(name, script, lambda at_ms: self._oracle.give_back(claimer, items, at_ms))

    def _expire(self, act: Act) -> None:
        """Take back what ran out."""
        over = [task.job_id for task in self._oracle.tasks.values() if task.is_held and task.has_lapsed]
        items = self._held(self._some(act, over), act.skew)
        script = self._nodes[act.name].jobs.transitions.expire(items)
        self._try(act.name, script, lambda at_ms: self._oracle.expire(items, at_ms))

    def _abort(self, act: Act) -> None:
        """Abort jobs."""
        jobs = self._some(act, self._oracle.those(JobState.PENDING, *HELD))
        script = self._nodes[act.name].jobs.transitions.abort([{"job_id": job_id} for job_id in jobs], "test")
        self._try(act.name, script, lambda at_ms: self._oracle.abort(jobs, "test", at_ms))


def _seen(row: Any) -> tuple[Any, ...]:
    return (
        *(row[name] for name in ("kind", "state", "claimer", "claim_token", "attempts", "failures")),
        *(row[name] for name in ("max_interruptions", "interruptions")),
        *(row[name] for name in ("max_attempts", "created_ms", "not_before_ms", "started_ms", "ended_ms")),
        *(row["exit_code"], row["reason"], row["lease_until_ms"] is not None),
        row["waits"] if row["state"] == JobState.PENDING else None,
    )


def _walk(case: HomeCase, folder: Path, server: Server | None, examples: int, steps: int) -> None:
    machine = type("Walk", (JobWalk,), {"case": case, "folder": folder, "server": server})
    walk(machine, examples, steps)


@pytest.mark.soak
def test_what_becomes_of_jobs_in_memory_is_what_the_rules_say(tmp_path: Path) -> None:
    _walk(MEMORY, tmp_path, None, lengths.JOB_WALKS, 50)


@pytest.mark.soak
@pytest.mark.parametrize("case", [FILE, MESH, *lengths.in_soak(MESH_REPLICA)], ids=str)
def test_what_becomes_of_jobs_on_a_shared_home_is_what_the_rules_say(
    case: HomeCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue("shared_server") if case.needs_server else None
    _walk(case, tmp_path, server, max(4, lengths.JOB_WALKS // 4), 40)
