"""What the rules say of jobs, in memory: each in a state, claimed or free."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from vox_mesh.model.jobs.records import ENDS, HELD, JobState

PENDING, CLAIMED, RUNNING, SUCCEEDED, FAILED, ABORTED = JobState

ILLEGAL: Final = "illegal_transition"
STALE: Final = "stale_claim"

Verdict = str | list[str]
"""Why an op is refused, or which jobs it moves."""

Item = Mapping[str, Any]


@dataclass(eq=False)
class Task:
    """A job and what became of it."""

    job_id: str
    kind: str
    max_attempts: int
    created_ms: int
    not_before_ms: int
    after: dict[str, str] = field(default_factory=dict)
    state: JobState = PENDING
    claimer: str | None = None
    token: int = 0
    attempts: int = 0
    failures: int = 0
    max_interruptions: int = 5
    interruptions: int = 0
    has_lapsed: bool = False
    started_ms: int | None = None
    ended_ms: int | None = None
    exit_code: int | None = None
    reason: str | None = None

    @property
    def is_held(self) -> bool:
        """Whether it is claimed."""
        return self.state in HELD

    def is_of(self, node: str | None, item: Item) -> bool:
        """Whether the item names the token of the claim that it is, or was last, under; by that node."""
        is_theirs = node is None or self.claimer == node
        return self.token == item["claim_token"] and is_theirs and self.state is not PENDING

    def let_go(
        self, at_ms: int, reason: str | None, *, failed: bool = False, interrupted: bool = False
    ) -> None:
        """It goes back to the ones that wait."""
        self.state, self.claimer, self.started_ms = PENDING, None, None
        self.not_before_ms, self.reason = at_ms, reason
        self.failures += failed
        self.interruptions += interrupted

    def end(self, state: JobState, at_ms: int, reason: str | None) -> None:
        """Nothing comes after this."""
        self.state, self.ended_ms, self.reason = state, at_ms, reason


class Oracle:
    """The plane of jobs as a few plain rules."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self.tasks: dict[str, Task] = {}
        self.routes: dict[str, str | None] = {}
        self.ops: set[str] = set()
        """The ops that have come."""
        self._limits = limits

    def those(self, *states: JobState) -> list[str]:
        """The jobs that are in one of these states."""
        return [task.job_id for task in self.tasks.values() if task.state in states]

    def waits(self, task: Task) -> int:
        """How many of the ones that it waits for have not come to the awaited end."""
        return sum(not self._is_met(*each) for each in task.after.items())

    def _is_met(self, predecessor: str, awaited: str) -> bool:
        if awaited == "op":
            return predecessor in self.ops
        state = self.tasks[predecessor].state
        return state is SUCCEEDED or (awaited == "end" and state in ENDS)

    # --- scheduling ------------------------------------------------------------------------------

    def schedule(self, items: Sequence[Item], at_ms: int) -> Verdict:
        """All of the ones that are not there yet, or none."""
        new = {item["job_id"]: item for item in reversed(items) if item["job_id"] not in self.tasks}
        known = self.tasks.keys() | new.keys()
        links = [link for item in new.values() for link in item.get("after", ()) if link[1] != "op"]
        if any(predecessor not in known for predecessor, _ in links):
            return "unknown_predecessor"
        lost = {*self.those(FAILED, ABORTED)}
        if any(awaited == "success" and predecessor in lost for predecessor, awaited in links):
            return "predecessor_failed"
        for item in items:
            if item["job_id"] not in self.tasks:
                task = Task(item["job_id"], item["kind"], item["max_attempts"], at_ms, at_ms)
                task.not_before_ms = max(at_ms, item.get("run_at_ms", 0))
                task.after = dict(item.get("after", ()))
                task.max_interruptions = item.get("max_interruptions", 5)
                self.tasks[task.job_id] = task
        return []

    # --- holding ---------------------------------------------------------------------------------

    def routed_to(self, kind: str) -> str | None:
        """Where jobs of this kind have to go."""
        patterns = [
            pattern
            for pattern, node in self.routes.items()
            if node and (pattern == kind or (pattern[-1] == "*" and kind.startswith(pattern[:-1])))
        ]
        patterns.sort(key=lambda pattern: (pattern[-1] == "*", -len(pattern)))
        return self.routes[patterns[0]] if patterns else None

    def is_ready(self, task: Task, now_ms: int) -> bool:
        """Whether it can be claimed by someone."""
        return task.state is PENDING and not self.waits(task) and task.not_before_ms <= now_ms

    def claim(self, node: str, items: Sequence[Item], now_ms: int) -> Verdict:
        """The ones that are to be had, as many of each kind as are admitted."""
        named = [(self.tasks[item["job_id"]], item["claim_token"]) for item in items]
        ready = [task for task, token in named if self.is_ready(task, now_ms) and token == task.token + 1]
        allowed = [task for task in ready if self.routed_to(task.kind) in (None, node)]
        busy: dict[str, int] = {}
        for task in self.tasks.values():
            busy[task.kind] = busy.get(task.kind, 0) + task.is_held
        taken: list[Task] = []
        for task in allowed:
            busy[task.kind] += 1  # also when it is named twice
            if busy[task.kind] <= self._limits.get(task.kind, math.inf) and task not in taken:
                taken.append(task)
        if not taken:
            return "routed_elsewhere" if len(allowed) < len(ready) else "held_back" if ready else ILLEGAL
        for task in taken:
            task.state, task.claimer, task.has_lapsed = CLAIMED, node, False
            task.token += 1
            task.attempts += 1
        return [task.job_id for task in taken]

    def renew(self, node: str, items: Sequence[Item]) -> Verdict:
        """Those whose lease has not run out have it again."""
        return self._held(node, items, HELD)

    def start(self, node: str, items: Sequence[Item], at_ms: int) -> Verdict:
        """The ones that are claimed, and whose lease has not run out."""
        verdict = self._held(node, items, {CLAIMED})
        for job_id in verdict if isinstance(verdict, list) else ():
            self.tasks[job_id].state, self.tasks[job_id].started_ms = RUNNING, at_ms
        return verdict

    def _held(self, node: str, items: Sequence[Item], states: Iterable[JobState]) -> Verdict:
        named = [(self.tasks[item["job_id"]], item) for item in items]
        own = [task for task, item in named if task.is_of(node, item)]
        valid = [task for task in own if not (task.is_held and task.has_lapsed)]
        moved = [task.job_id for task in valid if task.state in states]
        if moved:
            return list(dict.fromkeys(moved))
        return STALE if len(valid) < len(items) else ILLEGAL

    # --- ending ----------------------------------------------------------------------------------

    def complete(self, node: str, items: Sequence[Item], at_ms: int) -> Verdict:
        """All of them, or none."""
        named = {item["job_id"]: item for item in reversed(items)}
        if not all(self.tasks[item["job_id"]].is_of(node, item) for item in items):
            return STALE
        if not all(self.tasks[job_id].state is RUNNING for job_id in named):
            return ILLEGAL
        for job_id, item in named.items():
            task = self.tasks[job_id]
            task.end(JobState(item["state"]), at_ms, item.get("reason"))
            task.exit_code = item.get("exit_code")
            task.failures += task.state is FAILED
        self._follow_up(named, at_ms)
        return []

    def give_back(self, node: str | None, items: Sequence[Item], at_ms: int) -> Verdict:
        """All of them, or none; a failed one only if that was not its last attempt."""
        named = {item["job_id"]: item for item in reversed(items)}
        if not all(self.tasks[item["job_id"]].is_of(node, item) for item in items):
            return STALE
        for job_id, item in named.items():
            task = self.tasks[job_id]
            if not task.is_held or task.failures + item["failed"] >= task.max_attempts:
                return ILLEGAL
            if item["interrupted"] and task.interruptions >= task.max_interruptions:
                return ILLEGAL
        for job_id, item in named.items():
            until_ms = max(at_ms, item.get("not_before_ms", 0))
            counts = {name: item[name] for name in ("failed", "interrupted")}
            self.tasks[job_id].let_go(until_ms, item.get("reason"), **counts)
        return []

    def expire(self, items: Sequence[Item], at_ms: int) -> Verdict:
        """Those whose lease has run out."""
        named = [(self.tasks[item["job_id"]], item) for item in items]
        over = {task.job_id: task for task, item in named if task.is_of(None, item)}
        over = {job_id: task for job_id, task in over.items() if task.is_held and task.has_lapsed}
        for task in over.values():
            if task.interruptions < task.max_interruptions:
                task.let_go(at_ms, "the lease ran out", interrupted=True)
            else:
                limit = f"max_interruptions ({task.max_interruptions})"
                task.interruptions += 1
                task.not_before_ms = at_ms
                task.end(FAILED, at_ms, f"interrupted more often than {limit} allows: the lease ran out")
        self._follow_up(over, at_ms)
        return list(over) or ILLEGAL

    def abort(self, job_ids: Iterable[str], reason: str, at_ms: int) -> Verdict:
        """The ones that have not ended."""
        ended = [job_id for job_id in dict.fromkeys(job_ids) if self.tasks[job_id].state not in ENDS]
        for job_id in ended:
            self.tasks[job_id].end(ABORTED, at_ms, reason)
        self._follow_up(ended, at_ms)
        return ended or ILLEGAL

    def _follow_up(self, moved: Iterable[str], at_ms: int) -> None:
        """What waits for the success of one that failed fails too; what waits for less begins from now on."""
        ended = {job_id for job_id in moved if self.tasks[job_id].state in ENDS}
        waiting = [task for task in self.tasks.values() if task.state is PENDING]
        for task in waiting:  # in the order in which they came: what they wait for was there before them
            lost = [each for each, awaited in task.after.items() if awaited == "success" and each in ended]
            if any(self.tasks[each].state is not SUCCEEDED for each in lost):
                task.end(FAILED, at_ms, "a job that it waited for did not succeed")
                ended.add(task.job_id)
        for task in waiting:
            if task.state is PENDING and ended & task.after.keys():
                task.not_before_ms = max(task.not_before_ms, at_ms)

    # --- what is to be seen ----------------------------------------------------------------------

    def seen(self) -> dict[str, tuple[Any, ...]]:
        """What the database is to show of each, in the order in which they came."""
        return {
            task.job_id: (
                *(task.kind, task.state.value, task.claimer, task.token, task.attempts, task.failures),
                *(task.max_interruptions, task.interruptions),
                *(task.max_attempts, task.created_ms, task.not_before_ms, task.started_ms, task.ended_ms),
                *(task.exit_code, task.reason, task.is_held),
                self.waits(task) if task.state is PENDING else None,
            )
            for task in self.tasks.values()
        }
