"""Lines on the store: what a script costs, alone and among many, and what a point query costs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from bench import workload
from bench.environment import BenchEnvironment, Rounds, writing
from bench.figures import Figure, Of, Target, at_least, at_most
from bench.measure import alternate, rate, ratios
from bench.programs.fleet import FleetRound, fleet
from bench.raw import raw_http, raw_socket
from tools.homes import FILE, MEMORY, MESH

_CALLERS: Final = 64
_PROCESSES: Final = 4


async def one_caller_sqld(environment: BenchEnvironment) -> list[Figure]:
    """One script at a time, on a server."""
    seconds = environment.pace.seconds
    async with environment.store(MESH) as store, raw_socket(environment.sqld) as raw:
        ours = writing(store, workload.one_insert)
        sides = {"ours": lambda: rate(ours, seconds), "raw": lambda: rate(raw.insert, seconds)}
        found = await alternate(sides, environment.pace.rounds)
    what = "one caller, sqld: script of one insert / raw insert, WebSocket"
    return [Figure("one-caller-sqld", what, "us", _us(found["ours"]), _us(found["raw"]), at_most(1.5))]


async def many_callers_sqld(environment: BenchEnvironment) -> list[Figure]:
    """Scripts of many callers, combined, on a server."""
    seconds = environment.pace.seconds
    async with (
        environment.store(MESH) as store,
        raw_socket(environment.sqld) as socket,
        raw_http(environment.sqld) as http,
    ):
        ours = writing(store, workload.two_inserts)
        sides = {
            "ours": lambda: rate(ours, seconds, _CALLERS),
            "ws, one at a time": lambda: rate(socket.insert, seconds),
            "ws, 64 in flight": lambda: socket.rate_in_flight(_CALLERS, seconds),
            "http, one at a time": lambda: rate(http.insert, seconds),
            "http, 64 callers": lambda: rate(http.insert, seconds, _CALLERS),
        }
        found = await alternate(sides, environment.pace.rounds)
    what = "64 callers, sqld: scripts of two inserts / raw inserts,"
    return [
        _compare_with_single("64-callers-sqld-ws", f"{what} WebSocket", found, "ws", at_least(3.5)),
        _compare_with_single("64-callers-sqld-http", f"{what} HTTP", found, "http", at_least(18.0)),
    ]


async def merged_sqld(environment: BenchEnvironment) -> list[Figure]:
    """Scripts of one shape, which share a statement, on a server."""
    seconds = environment.pace.seconds
    async with environment.store(MESH) as store, raw_socket(environment.sqld) as socket:
        ours = writing(store, workload.merged_insert)
        sides = {
            "ours": lambda: rate(ours, seconds, _CALLERS),
            "ws, one at a time": lambda: rate(socket.insert, seconds),
            "ws, 64 in flight": lambda: socket.rate_in_flight(_CALLERS, seconds),
        }
        found = await alternate(sides, environment.pace.rounds)
    what = "64 callers, sqld: merged scripts of one insert / raw inserts, WebSocket"
    return [_compare_with_single("merged-sqld", what, found, "ws", None)]


def _compare_with_single(
    name: str, what: str, found: Rounds, transport: str, target: Target | None
) -> Figure:
    """Compare our rate with single requests, each sent after the last response; the notes have the rest."""
    notes: dict[str, float] = {}
    for way, raw in found.items():
        if way.startswith(transport):
            notes[f"raw {way}"] = statistics.median(raw)
            notes[f"ratio to raw {way}"] = statistics.median(ratios(found["ours"], raw))
    single = found[f"{transport}, one at a time"]
    return Figure(name, what, "1/s", found["ours"], single, target, notes=notes)


async def one_caller_file(environment: BenchEnvironment) -> list[Figure]:
    """One script at a time, in a file."""
    found = await environment.compare_writes_with_sqlite(FILE, workload.one_insert, 1)
    what = "one caller, file: script of one insert / raw sqlite3 transaction"
    return [Figure("one-caller-file", what, "us", _us(found["ours"]), _us(found["raw"]), at_most(3.0))]


async def many_callers_file(environment: BenchEnvironment) -> list[Figure]:
    """Scripts of many callers, combined, in a file."""
    found = await environment.compare_writes_with_sqlite(FILE, workload.two_inserts, _CALLERS)
    what = "64 callers, file: scripts of two inserts / raw sqlite3, one insert each"
    return [Figure("64-callers-file", what, "1/s", found["ours"], found["raw"], at_least(2.0))]


async def merged_file(environment: BenchEnvironment) -> list[Figure]:
    """Scripts of one shape, which share a statement, in a file."""
    found = await environment.compare_writes_with_sqlite(FILE, workload.merged_insert, _CALLERS)
    what = "64 callers, file: merged scripts of one insert / raw sqlite3, one insert each"
    return [Figure("merged-file", what, "1/s", found["ours"], found["raw"])]


async def many_processes_file(environment: BenchEnvironment) -> list[Figure]:
    """Several processes on one file."""
    share = _CALLERS // _PROCESSES
    async with (
        fleet(environment.folder / "many", _PROCESSES, share, environment.pace) as many,
        fleet(environment.folder / "one", 1, _CALLERS, environment.pace) as one,
        fleet(environment.folder / "small", 1, share, environment.pace) as small,
    ):
        sides = {"many": many.round, "one": one.round, "small": small.round}
        found = await alternate(sides, environment.pace.rounds)
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


async def one_caller_memory(environment: BenchEnvironment) -> list[Figure]:
    """One script at a time, in memory."""
    found = await environment.compare_writes_with_sqlite(MEMORY, workload.one_insert, 1)
    what = "one caller, memory: scripts of one insert / raw sqlite3 transaction"
    target = at_least(20_000.0, Of.OURS)
    return [Figure("one-caller-memory", what, "1/s", found["ours"], found["raw"], target)]


async def read_memory(environment: BenchEnvironment) -> list[Figure]:
    """A point query, in memory."""
    return [_read("memory", "raw sqlite3", await environment.compare_reads_with_sqlite(MEMORY))]


async def read_file(environment: BenchEnvironment) -> list[Figure]:
    """A point query, in a file."""
    return [_read("file", "raw sqlite3", await environment.compare_reads_with_sqlite(FILE))]


async def read_sqld(environment: BenchEnvironment) -> list[Figure]:
    """A point query, on a server."""
    return [_read("sqld", "raw query, WebSocket", await environment.compare_reads_with_socket(MESH))]


def _read(home: str, raw: str, found: Rounds) -> Figure:
    what = f"one caller, {home}: one row by its id, p50 / {raw}"
    return Figure(f"read-{home}", what, "us", found["ours"], found["raw"])


def _us(per_second: Sequence[float]) -> list[float]:
    return [1e6 / each for each in per_second]


def _per_second(rounds: Sequence[FleetRound]) -> list[float]:
    return [each.per_second for each in rounds]
