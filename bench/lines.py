"""The lines of the benchmark: what is measured, beside which raw limit, and what is to be reached."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench import (
    inbox_lines,
    job_lines,
    lock_lines,
    message_lines,
    node_lines,
    oplog_lines,
    replica_lines,
    rhythm_lines,
    service_lines,
    watch_lines,
    workload,
)
from bench.figures import Figure, Of, Target, at_least, at_most
from bench.fleet import FleetRound, fleet
from bench.ground import Ground, Rounds, writing
from bench.measure import alternate, rate, ratios
from bench.raw import raw_http, raw_socket
from tools.homes import FILE, MEMORY, MESH

_CALLERS: Final = 64
_PROCESSES: Final = 4


@dataclass(frozen=True, slots=True)
class Line:
    """One thing to measure; it may give several figures."""

    name: str
    what: str
    run: Callable[[Ground], Coroutine[Any, Any, list[Figure]]]
    needs_server: bool = False


async def _one_caller_sqld(ground: Ground) -> list[Figure]:
    seconds = ground.pace.seconds
    async with ground.store(MESH) as store, raw_socket(ground.sqld) as raw:
        ours = writing(store, workload.one_insert)
        sides = {"ours": lambda: rate(ours, seconds), "raw": lambda: rate(raw.insert, seconds)}
        found = await alternate(sides, ground.pace.rounds)
    what = "one caller, sqld: script of one insert / raw insert, WebSocket"
    return [Figure("one-caller-sqld", what, "us", _us(found["ours"]), _us(found["raw"]), at_most(1.5))]


async def _many_callers_sqld(ground: Ground) -> list[Figure]:
    seconds = ground.pace.seconds
    async with (
        ground.store(MESH) as store,
        raw_socket(ground.sqld) as socket,
        raw_http(ground.sqld) as http,
    ):
        ours = writing(store, workload.two_inserts)
        sides = {
            "ours": lambda: rate(ours, seconds, _CALLERS),
            "ws, one at a time": lambda: rate(socket.insert, seconds),
            "ws, 64 in flight": lambda: socket.rate_in_flight(_CALLERS, seconds),
            "http, one at a time": lambda: rate(http.insert, seconds),
            "http, 64 callers": lambda: rate(http.insert, seconds, _CALLERS),
        }
        found = await alternate(sides, ground.pace.rounds)
    what = "64 callers, sqld: scripts of two inserts / raw inserts,"
    return [
        _beside_single("64-callers-sqld-ws", f"{what} WebSocket", found, "ws", at_least(3.5)),
        _beside_single("64-callers-sqld-http", f"{what} HTTP", found, "http", at_least(18.0)),
    ]


async def _merged_sqld(ground: Ground) -> list[Figure]:
    seconds = ground.pace.seconds
    async with ground.store(MESH) as store, raw_socket(ground.sqld) as socket:
        ours = writing(store, workload.merged_insert)
        sides = {
            "ours": lambda: rate(ours, seconds, _CALLERS),
            "ws, one at a time": lambda: rate(socket.insert, seconds),
            "ws, 64 in flight": lambda: socket.rate_in_flight(_CALLERS, seconds),
        }
        found = await alternate(sides, ground.pace.rounds)
    what = "64 callers, sqld: merged scripts of one insert / raw inserts, WebSocket"
    return [_beside_single("merged-sqld", what, found, "ws", None)]


def _beside_single(name: str, what: str, found: Rounds, transport: str, target: Target | None) -> Figure:
    """Our rate beside single requests, each sent when the last was answered; the notes show the rest."""
    notes: dict[str, float] = {}
    for way, raw in found.items():
        if way.startswith(transport):
            notes[f"raw {way}"] = statistics.median(raw)
            notes[f"ratio to raw {way}"] = statistics.median(ratios(found["ours"], raw))
    single = found[f"{transport}, one at a time"]
    return Figure(name, what, "1/s", found["ours"], single, target, notes=notes)


async def _one_caller_file(ground: Ground) -> list[Figure]:
    found = await ground.writes_beside_sqlite(FILE, workload.one_insert, 1)
    what = "one caller, file: script of one insert / raw sqlite3 transaction"
    return [Figure("one-caller-file", what, "us", _us(found["ours"]), _us(found["raw"]), at_most(3.0))]


async def _many_callers_file(ground: Ground) -> list[Figure]:
    found = await ground.writes_beside_sqlite(FILE, workload.two_inserts, _CALLERS)
    what = "64 callers, file: scripts of two inserts / raw sqlite3, one insert each"
    return [Figure("64-callers-file", what, "1/s", found["ours"], found["raw"], at_least(2.0))]


async def _merged_file(ground: Ground) -> list[Figure]:
    found = await ground.writes_beside_sqlite(FILE, workload.merged_insert, _CALLERS)
    what = "64 callers, file: merged scripts of one insert / raw sqlite3, one insert each"
    return [Figure("merged-file", what, "1/s", found["ours"], found["raw"])]


async def _many_processes_file(ground: Ground) -> list[Figure]:
    share = _CALLERS // _PROCESSES
    async with (
        fleet(ground.folder / "many", _PROCESSES, share, ground.pace) as many,
        fleet(ground.folder / "one", 1, _CALLERS, ground.pace) as one,
        fleet(ground.folder / "small", 1, share, ground.pace) as small,
    ):
        sides = {"many": many.round, "one": one.round, "small": small.round}
        found = await alternate(sides, ground.pace.rounds)
    together = _per_second(found["many"])
    waits = [each.longest_wait_ms for each in found["many"]]
    shares = [each.smallest_share for each in found["many"]]
    notes = {"one process, 16 callers": statistics.median(_per_second(found["small"]))}
    typical_wait = {"median of the rounds": statistics.median(waits)}
    what = "4 processes x 16 callers, file:"
    return [
        Figure(
            "4-processes-file",
            f"{what} scripts of two inserts / one process, 64 callers",
            "1/s",
            together,
            _per_second(found["one"]),
            at_least(0.6),
            notes=notes,
        ),
        Figure(
            "4-processes-file-wait",
            f"{what} longest wait of any write",
            "ms",
            waits,
            target=at_most(100.0, Of.OURS),
            worst=True,
            notes=typical_wait,
        ),
        Figure(
            "4-processes-file-share",
            f"{what} smallest share of the even one",
            "x",
            shares,
            target=at_least(0.8, Of.OURS),
            worst=True,
        ),
    ]


async def _one_caller_memory(ground: Ground) -> list[Figure]:
    found = await ground.writes_beside_sqlite(MEMORY, workload.one_insert, 1)
    what = "one caller, memory: scripts of one insert / raw sqlite3 transaction"
    target = at_least(20_000.0, Of.OURS)
    return [Figure("one-caller-memory", what, "1/s", found["ours"], found["raw"], target)]


async def _read_memory(ground: Ground) -> list[Figure]:
    return [_read("memory", "raw sqlite3", await ground.reads_beside_sqlite(MEMORY))]


async def _read_file(ground: Ground) -> list[Figure]:
    return [_read("file", "raw sqlite3", await ground.reads_beside_sqlite(FILE))]


async def _read_sqld(ground: Ground) -> list[Figure]:
    return [_read("sqld", "raw query, WebSocket", await ground.reads_beside_socket(MESH))]


def _read(home: str, raw: str, found: Rounds) -> Figure:
    what = f"one caller, {home}: one row by its id, p50 / {raw}"
    return Figure(f"read-{home}", what, "us", found["ours"], found["raw"])


def _us(per_second: Sequence[float]) -> list[float]:
    return [1e6 / each for each in per_second]


def _per_second(rounds: Sequence[FleetRound]) -> list[float]:
    return [each.per_second for each in rounds]


LINES: Final = (
    Line("one-caller-sqld", "one script at a time, on a server", _one_caller_sqld, needs_server=True),
    Line("64-callers-sqld", "scripts combined, on a server", _many_callers_sqld, needs_server=True),
    Line("one-caller-file", "one script at a time, in a file", _one_caller_file),
    Line("64-callers-file", "scripts combined, in a file", _many_callers_file),
    Line("4-processes-file", "several processes on one file", _many_processes_file),
    Line("one-caller-memory", "one script at a time, in memory", _one_caller_memory),
    Line("merged-sqld", "scripts of one shape, on a server", _merged_sqld, needs_server=True),
    Line("merged-file", "scripts of one shape, in a file", _merged_file),
    Line("read-memory", "a point query, in memory", _read_memory),
    Line("read-file", "a point query, in a file", _read_file),
    Line("read-sqld", "a point query, on a server", _read_sqld, needs_server=True),
    Line("read-replica", "a point query, on the replica", replica_lines.read_replica, needs_server=True),
    Line("first-copy", "a replica from nothing", replica_lines.first_copy, needs_server=True),
    Line("following", "a replica that follows", replica_lines.following, needs_server=True),
    Line("visible-mesh", "a commit seen by another process", watch_lines.visible_mesh, needs_server=True),
    Line("visible-file", "a commit seen by another process, in a file", watch_lines.visible_file),
    Line("idle", "waiting for a commit", watch_lines.idle, needs_server=True),
    Line("oplog-append", "ops of many callers", oplog_lines.append, needs_server=True),
    Line("oplog-one-caller", "one op at a time, on a server", oplog_lines.one_caller, needs_server=True),
    Line("oplog-verify", "a whole log", oplog_lines.verify),
    Line("nodes-live", "who is here, in a large mesh", node_lines.live),
    Line("nodes-writes", "a node that has nothing to do", node_lines.writes, needs_server=True),
    Line("lock-pairs-sqld", "a lock for each caller, on a server", lock_lines.pairs_sqld, needs_server=True),
    Line("lock-pair-sqld", "one lock at a time, on a server", lock_lines.one_caller_sqld, needs_server=True),
    Line("lock-pairs-file", "a lock for each caller, in a file", lock_lines.pairs_file),
    Line("lock-contended", "one lock for all callers", lock_lines.contended, needs_server=True),
    Line("lock-hand-over-mesh", "from process to process", lock_lines.hand_over_mesh, needs_server=True),
    Line("lock-hand-over-file", "from process to process, in a file", lock_lines.hand_over_file),
    Line("lock-guard", "many paths, many patterns", lock_lines.guard),
    Line("message-relay", "to another process, by the relay", message_lines.by_relay, needs_server=True),
    Line("message-watch", "to another process, without the relay", message_lines.by_watch, needs_server=True),
    Line("message-rates-sqld", "many senders, on a server", message_lines.rates_sqld, needs_server=True),
    Line("message-rates-file", "many senders, in a file", message_lines.rates_file),
    Line("message-inbox-sqld", "a large inbox, on a server", inbox_lines.large_sqld, needs_server=True),
    Line("message-inbox-file", "a large inbox, in a file", inbox_lines.large_file),
    Line("message-claims", "many senders, or one that is held back", inbox_lines.claims),
    Line("job-scheduled-sqld", "many at a time, on a server", job_lines.scheduled_sqld, needs_server=True),
    Line("job-scheduled-file", "many at a time, in a file", job_lines.scheduled_file),
    Line("job-done-sqld", "jobs that do nothing, on a server", job_lines.done_sqld, needs_server=True),
    Line("job-done-file", "jobs that do nothing, in a file", job_lines.done_file),
    Line("job-begun-sqld", "how soon a job begins, on a server", job_lines.begun_sqld, needs_server=True),
    Line("job-begun-file", "how soon a job begins, in a file", job_lines.begun_file),
    Line("job-roster", "questions to a large roster", job_lines.roster),
    Line("job-crowded-sqld", "among many that are finished", job_lines.crowded_sqld, needs_server=True),
    Line("job-crowded-file", "among many that are finished, in a file", job_lines.crowded_file),
    Line("service-up", "from nothing to ready", service_lines.up, needs_server=True),
    Line("service-command", "a command beside a node", service_lines.command),
    Line("service-idle", "a node that has nothing to do", service_lines.idle, needs_server=True),
    Line("rhythm-beat", "how punctual beats are", rhythm_lines.lateness),
    Line("rhythm-drift", "an hour of beats", rhythm_lines.drift),
    Line("rhythm-writes", "what claims cost", rhythm_lines.writes, needs_server=True),
    Line("rhythm-roll-up", "a bar with many claims", rhythm_lines.roll_up, needs_server=True),
)


def chosen(names: Sequence[str]) -> list[Line]:
    """The lines whose name holds one of the names; all of them if none is given."""
    return [line for line in LINES if not names or any(name in line.name for name in names)]
