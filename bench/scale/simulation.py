"""A simulated day of a large fleet: databases, nodes with slots, jobs, and a loss of nodes at noon.

Each database is a server that does one thing at a time, in equal times, in the order of arrival. Messages,
locks and heartbeats slow it down by the share of time that they take. The seed decides everything.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Final

DAY_S: Final = 86_400.0
_STEPS: Final = 3
"""The writes of a job: it is scheduled, claimed and completed, each a third of its cost."""

_SCHEDULED, _CLAIMED, _ENDED, _FREED, _LOST, _FOUND = range(6)
_Event = tuple[float, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet, and what its agents do. All databases have equal shares of it."""

    databases: int = 20
    nodes: int = 200
    agents: int = 10_000
    slots: int = 8
    """How many jobs a node runs at a time."""
    jobs_per_agent_hour: float = 2.0
    job_s: float = 180.0
    """The mean time of a job; the times are exponential."""
    job_cost_s: float = 0.002
    """The time that a job keeps its database busy."""
    background: float = 0.05
    """The share of its time that a database spends on everything else."""
    swing: float = 0.5
    """How much more there is to do at noon than on average, and less at midnight."""
    burst: int = 100
    """How many jobs each database gets at once at every full hour, as on a downbeat."""
    lost_nodes: int = 16
    """How many nodes of all databases are lost at noon, for good."""
    takeover_s: float = 30.0
    """When the jobs of a lost node are back in the queue."""
    seconds: float = DAY_S


@dataclass(slots=True)
class Result:
    """What a day brought, of all databases."""

    arrived: int = 0
    completed: int = 0
    waiting: int = 0
    running: int = 0
    lost: int = 0
    """Attempts that ended with their node."""
    busy_s: float = 0.0
    """The time that the databases were busy with jobs."""
    services: int = 0
    slot_s: float = 0.0
    database_waits: list[float] = field(default_factory=list)
    """Of a sample of the writes: how long each waited for its database."""
    start_delays: list[float] = field(default_factory=list)
    """From being ready to the start, of each attempt."""
    recovery_delays: list[float] = field(default_factory=list)
    """From the loss of a node to the new start of each job that it ran."""


def quantile(values: list[float], share: float) -> float:
    """Return a quantile, in thousandths; 0 of nothing."""
    return statistics.quantiles(values, n=1_000)[round(share * 1_000) - 1] if len(values) > 1 else 0.0


class SimulatedDatabase:
    """One database with its nodes: takes events in the order of their times."""

    def __init__(self, fleet: Fleet, number: int, seed: int) -> None:
        self._fleet = fleet
        self._chance = random.Random(f"{seed}:{number}")
        self._service_s = fleet.job_cost_s / _STEPS / (1 - fleet.background)
        self._free_at = 0.0
        self._events: list[_Event] = []
        self._serial = 0
        self._ready: deque[tuple[float, int]] = deque()
        self._free = [fleet.slots] * (fleet.nodes // fleet.databases)
        self._open_nodes = deque(range(len(self._free)) if fleet.slots else ())
        self._dead: set[int] = set()
        self._attempts: dict[int, int] = {}  # of running jobs, the node
        self._lost_at: dict[int, float] = {}
        self._number = number
        self.result = Result()

    def run(self) -> Result:
        """Run to the end, and return what happened."""
        fleet, result = self._fleet, self.result
        self._add(self._next_arrival(0.0), _SCHEDULED, 0, 1)
        for hour in range(1, math.ceil(fleet.seconds / 3_600)):
            self._add(hour * 3_600.0, _SCHEDULED, fleet.burst, 0)
        lost = len(range(self._number, fleet.lost_nodes, fleet.databases))
        for node in range(min(lost, len(self._free))):
            self._add(fleet.seconds / 2, _LOST, node, 0)
        while self._events and self._events[0][0] < fleet.seconds:
            now, kind, _, one, other = heapq.heappop(self._events)
            if kind == _SCHEDULED:
                self._schedule(now, one, is_random=bool(other))
            elif kind == _CLAIMED:
                self._begin(now, one, other)
            elif kind == _ENDED:
                self._end(now, one, other)
            elif kind == _FREED:
                self._release(one)
                self._claim(now)
            elif kind == _LOST:
                self._lose(now, one)
            else:
                self._ready.appendleft((now, one))
                self._claim(now)
        result.running = len(self._attempts)
        result.waiting = result.arrived - result.completed - result.running
        return result

    def _add(self, at: float, kind: int, one: int, other: int) -> None:
        self._serial += 1
        heapq.heappush(self._events, (at, kind, self._serial, one, other))

    def _next_arrival(self, now: float) -> float:
        """Return the next arrival of a Poisson process whose rate swings with the day, by thinning."""
        fleet, chance = self._fleet, self._chance
        mean = fleet.agents / fleet.databases * fleet.jobs_per_agent_hour / 3_600
        highest = mean * (1 + fleet.swing)
        while True:
            now += chance.expovariate(highest)
            rate = mean * (1 - fleet.swing * math.cos(2 * math.pi * now / DAY_S))
            if chance.random() * highest <= rate:
                return now

    def _serve(self, now: float) -> float:
        """Let the database do one write, and return when it is done."""
        began = max(now, self._free_at)
        self._free_at = began + self._service_s
        result = self.result
        result.busy_s += self._service_s
        result.services += 1
        if not result.services % 16:
            result.database_waits.append(began - now)
        return self._free_at

    def _schedule(self, now: float, count: int, *, is_random: bool) -> None:
        if is_random:
            self._add(self._next_arrival(now), _SCHEDULED, 0, 1)
            count = 1
        for _ in range(count):
            self.result.arrived += 1
            stored = self._serve(now)
            self._ready.append((stored, self.result.arrived))
        self._claim(now)

    def _claim(self, now: float) -> None:
        while self._ready and self._open_nodes:
            node = self._open_nodes[0]
            since, job = self._ready.popleft()
            self._free[node] -= 1
            self._open_nodes.popleft()
            if self._free[node]:
                self._open_nodes.append(node)  # the next job goes to the next node
            started = self._serve(max(now, since))
            self._attempts[job] = node
            self.result.start_delays.append(started - since)
            if self._lost_at and job in self._lost_at:
                self.result.recovery_delays.append(started - self._lost_at.pop(job))
            self._add(started, _CLAIMED, job, node)

    def _begin(self, now: float, job: int, node: int) -> None:
        if self._attempts.get(job) == node:
            duration = self._chance.expovariate(1 / self._fleet.job_s)
            self.result.slot_s += duration
            self._add(now + duration, _ENDED, job, node)

    def _end(self, now: float, job: int, node: int) -> None:
        if self._attempts.get(job) != node:
            return  # the node was lost
        del self._attempts[job]
        self.result.completed += 1
        self._add(self._serve(now), _FREED, node, 0)

    def _release(self, node: int) -> None:
        if node in self._dead:
            return
        self._free[node] += 1
        if self._free[node] == 1:
            self._open_nodes.append(node)

    def _lose(self, now: float, node: int) -> None:
        self._dead.add(node)
        if node in self._open_nodes:
            self._open_nodes.remove(node)
        held = [job for job, holder in self._attempts.items() if holder == node]
        for job in held:
            del self._attempts[job]
            self.result.lost += 1
            self._lost_at[job] = now
            # Nodes look at different times.
            self._add(now + self._fleet.takeover_s * (1 + 0.1 * self._chance.random()), _FOUND, job, 0)


def simulate(fleet: Fleet, seed: int = 1) -> Result:
    """Simulate all databases of a fleet, one after the other: they share nothing."""
    total = Result()
    for number in range(fleet.databases):
        each = SimulatedDatabase(fleet, number, seed).run()
        for name in Result.__dataclass_fields__:
            setattr(total, name, getattr(total, name) + getattr(each, name))
    return total
