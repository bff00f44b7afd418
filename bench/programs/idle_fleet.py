"""A fleet of nodes on one server, each in a process, a folder and, for all it knows, a machine of its own.

It is ready when all nodes are up. Signals: `idle SECONDS`, answered with what each node took in that time;
`jobs COUNT`, answered with the milliseconds from the call that schedules a job to its start, of each,
and with how many claims were refused; `kill COUNT`, which makes all nodes busy and kills that many, and is
answered with the seconds until each of their jobs was started by another node (`Takeover`).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.programs.job_worker import FOLLOWED, SCOPE
from bench.programs.subprocess_driver import add_primary, node_settings
from vox_mesh import JobContext, Manifest, Mesh, run
from vox_mesh.node import MeshNode
from vox_mesh.nodes import identity

IDLE: Final = "idle"
JOBS: Final = "jobs"
KILL: Final = "kill"
LEASE_S: Final = 5.0
"""The lease of the jobs that make nodes busy."""

_WORK: Final = "work"
_WORK_S: Final = 20.0
_JOBS_EACH: Final = 2
_TAKEOVER_S: Final = 60.0
_PLACES: Final = 4
_START_GAP_S: Final = 0.2
_JOB_GAP_S: Final = 0.3
_JOB_S: Final = 30.0
_MAX_REPORT: Final = 2**16
_END: Final = b"end"
_COUNTS: Final = b"counts"
_REFUSALS: Final = b"refusals"
_REFUSED_CLAIMS: Final = "SELECT count(*) FROM agent_oplog WHERE kind = 'ClaimWork' AND accepted = 0"


class NodeCosts(NamedTuple):
    """What a node has taken since its start."""

    cpu_s: float
    pushed_bytes: int
    changes: int
    scripts: int
    claims: int
    begun: int

    def since(self, earlier: NodeCosts) -> NodeCosts:
        """Return the difference."""
        return NodeCosts._make(late - early for late, early in zip(self, earlier, strict=True))


class Takeover(NamedTuple):
    """What came of the jobs of nodes that were killed at once."""

    lost: int
    """How many jobs they had begun."""
    delays_s: list[float]
    """From the kill to the start of each of these by another node."""
    refused: int
    """How many claims the database has refused meanwhile, of all nodes."""


# --- a node ------------------------------------------------------------------------------------------


async def _serve(folder: Path, primary: Sequence[str], line: socket.socket) -> None:
    begun: list[int] = []
    async with Mesh.open(node_settings(folder, primary, scope_id=SCOPE)) as node:

        @node.worker.handles(FOLLOWED)
        async def follow(context: JobContext) -> None:
            begun.append(context.payload)
            _say(line, {"delay_ms": (time.monotonic_ns() - context.payload) / 1e6})

        @node.worker.handles(_WORK, lease=LEASE_S)
        async def work(context: JobContext) -> None:
            _say(line, {"began": context.payload})
            await asyncio.sleep(_WORK_S)

        await node.worker.start(concurrency=_PLACES, kinds=[FOLLOWED, _WORK])
        gc.freeze()
        _say(line, "up")
        loop = asyncio.get_running_loop()
        line.setblocking(False)
        while (asked := await loop.sock_recv(line, _MAX_REPORT)) != _END:
            if asked == _COUNTS:
                _say(line, _costs(node, len(begun)))
            elif asked == _REFUSALS:
                _say(line, {"refusals": (await node.store.read(_REFUSED_CLAIMS, fresh=True)).value})
            elif asked.isdigit():
                await node.jobs.schedule_all(
                    [Manifest.of(kind=_WORK, payload=at) for at in range(int(asked))]
                )
            else:
                await node.jobs.schedule(FOLLOWED, time.monotonic_ns())


def _costs(node: MeshNode, begun: int) -> NodeCosts:
    replica = node.store.replica_status
    fetched = 0 if replica is None else replica.fetched_bytes
    store = node.store
    return NodeCosts(
        time.process_time(), fetched, store.change_count, store.stats.answered, node.worker.claims_sent, begun
    )


def _say(line: socket.socket, value: object) -> None:
    line.send(json.dumps(value).encode())


# --- all of them -------------------------------------------------------------------------------------


class NodeFleet:
    """The nodes, as the process that forks them sees them."""

    def __init__(self, folder: Path, primary: Sequence[str]) -> None:
        self._folder = folder
        self._primary = primary
        self._lines: list[socket.socket] = []
        self._pids: list[int] = []

    def start(self, count: int) -> None:
        """Start this many, one after the other, and wait until all are up."""
        gc.freeze()
        for number in range(count):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if not (pid := os.fork()):
                self._be_node(number, theirs)
            theirs.close()
            self._pids.append(pid)
            self._lines.append(ours)
            time.sleep(_START_GAP_S)
        for line in self._lines:
            _hear(line)

    def _be_node(self, number: int, line: socket.socket) -> None:
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            os.setsid()
            for other in self._lines:
                other.close()
            # No setting names a machine: that two nodes share one has to be true.
            identity._installation = lambda: f"machine {number}"  # noqa: SLF001
            run(_serve(self._folder / f"node-{number}", self._primary, line))
            code = 0
        finally:
            os._exit(code)

    def costs(self) -> list[NodeCosts]:
        """Return what each node has taken."""
        for line in self._lines:
            line.send(_COUNTS)
        return [NodeCosts._make(_hear(line)) for line in self._lines]

    def idle(self, seconds: float) -> list[NodeCosts]:
        """Return what each node takes in this time."""
        before = self.costs()
        time.sleep(seconds)
        return [late.since(early) for early, late in zip(before, self.costs(), strict=True)]

    def jobs(self, count: int) -> dict[str, Any]:
        """Schedule jobs one after the other, in turn at each node."""
        import select

        before = self.costs()
        delays: list[float] = []
        for number in range(count):
            self._lines[number % len(self._lines)].send(b"schedule")
            readable, *_ = select.select(self._lines, [], [], _JOB_S)
            delays += [_hear(line)["delay_ms"] for line in readable]
            time.sleep(_JOB_GAP_S)
        after = self.costs()
        total = [late.since(early) for early, late in zip(before, after, strict=True)]
        claims, begun = sum(each.claims for each in total), sum(each.begun for each in total)
        return {"delays_ms": delays, "refused": claims - begun, "begun": begun}

    def kill(self, count: int) -> Takeover:
        """Make all nodes busy, kill the last ones at once, and wait until others have started their jobs."""
        jobs = range(_JOBS_EACH * len(self._lines))
        self._lines[0].send(str(len(jobs)).encode())
        started = self._started(jobs)
        refused = self._refusals()
        left = len(self._lines) - count
        for pid in (killed := self._pids[left:]):
            os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        for pid in killed:
            os.waitpid(pid, 0)
        del self._lines[left:], self._pids[left:]
        lost = {job for job, (node, _) in started.items() if node >= left}
        again = self._started(lost)
        delays_s = sorted(at - began for _, at in again.values())
        return Takeover(len(lost), delays_s, self._refusals() - refused)

    def _started(self, jobs: Collection[int]) -> dict[int, tuple[int, float]]:
        """Wait until these jobs are started; return the number of the node and the time of each."""
        import select

        found: dict[int, tuple[int, float]] = {}
        deadline = time.monotonic() + _TAKEOVER_S
        while len(found) < len(jobs) and (left_s := deadline - time.monotonic()) > 0:
            readable, *_ = select.select(self._lines, [], [], left_s)
            for line in readable:
                if (job := _hear(line)["began"]) in jobs:
                    found.setdefault(job, (self._lines.index(line), time.monotonic()))
        return found

    def _refusals(self) -> int:
        self._lines[0].send(_REFUSALS)
        while "refusals" not in (answer := _hear(self._lines[0])):
            pass
        return int(answer["refusals"])

    def end(self) -> None:
        """End all nodes."""
        for line in self._lines:
            line.send(_END)
        for pid in self._pids:
            os.waitpid(pid, 0)


def _report(fleet: NodeFleet, kind: str, amount: float) -> Any:
    if kind == IDLE:
        return fleet.idle(amount)
    return fleet.kill(int(amount)) if kind == KILL else fleet.jobs(int(amount))


def _hear(line: socket.socket) -> Any:
    if not (text := line.recv(_MAX_REPORT)):
        raise RuntimeError("a node has ended")
    return json.loads(text)


def main() -> None:
    """Start the fleet, and answer signals until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("count", type=int)
    add_primary(parser)
    arguments = parser.parse_args()
    fleet = NodeFleet(arguments.folder, arguments.primary)
    try:
        fleet.start(arguments.count)
        print("ready", flush=True)
        while words := sys.stdin.readline().split():
            kind, amount = words
            report = _report(fleet, kind, float(amount))
            print(json.dumps(report), flush=True)
    finally:
        fleet.end()


if __name__ == "__main__":
    main()
