"""A fleet of nodes on one server, each in a process, a folder and, for all it knows, a machine of its own.

It is ready when all nodes are up. Signals: `idle SECONDS`, answered with what each node took in that time;
`jobs COUNT`, answered with the milliseconds from the call that schedules a job to its start, of each,
and with how many claims were refused.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.programs.job_worker import FOLLOWED, SCOPE
from bench.programs.subprocess_driver import add_primary, node_settings
from vox_mesh import JobContext, Mesh, run
from vox_mesh.node import MeshNode
from vox_mesh.nodes import identity

IDLE: Final = "idle"
JOBS: Final = "jobs"
_PLACES: Final = 4
_START_GAP_S: Final = 0.2
_JOB_GAP_S: Final = 0.3
_JOB_S: Final = 30.0
_MAX_REPORT: Final = 2**16
_END: Final = b"end"
_COUNTS: Final = b"counts"


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


# --- a node ------------------------------------------------------------------------------------------


async def _serve(folder: Path, primary: Sequence[str], line: socket.socket) -> None:
    begun: list[int] = []
    async with Mesh.open(node_settings(folder, primary, scope_id=SCOPE)) as node:

        @node.worker.handles(FOLLOWED)
        async def follow(context: JobContext) -> None:
            begun.append(context.payload)
            _say(line, {"delay_ms": (time.monotonic_ns() - context.payload) / 1e6})

        await node.worker.start(concurrency=_PLACES, kinds=[FOLLOWED])
        gc.freeze()
        _say(line, "up")
        loop = asyncio.get_running_loop()
        line.setblocking(False)
        while (asked := await loop.sock_recv(line, _MAX_REPORT)) != _END:
            if asked == _COUNTS:
                _say(line, _costs(node, len(begun)))
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

    def end(self) -> None:
        """End all nodes."""
        for line in self._lines:
            line.send(_END)
        for pid in self._pids:
            os.waitpid(pid, 0)


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
            report: Any = fleet.idle(float(amount)) if kind == IDLE else fleet.jobs(int(float(amount)))
            print(json.dumps(report), flush=True)
    finally:
        fleet.end()


if __name__ == "__main__":
    main()
