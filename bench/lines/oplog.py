"""Lines on the op log: the cost of appending, and the speed and memory of verifying.

As a program, this is the process that verifies: it reports the time for each log.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple

import orjson

from bench.environment import BenchEnvironment, writing
from bench.figures import Figure, Of, Target, at_least, at_most
from bench.measure import Call, alternate, peak_bytes, rate
from bench.programs.subprocess_driver import ProgramProcess, start_program
from tools.homes import FILE, MESH, HomeCase
from vox_mesh import Mesh, OpKind, Script, Statement
from vox_mesh.node import MeshNode
from vox_mesh.oplog.export import export_log, verify_export
from vox_mesh.store.schema.statements import ddl
from vox_mesh.store.script import new_key

_CALLERS: Final = 64
_NOTE: Final = "bench.note"
_PAYLOAD: Final = {"agent": "planner", "file": "src/app.py", "step": 42, "why": "a text of common length"}
_HASH: Final = "0123456789abcdef" * 4
_SIGNATURE: Final = "ed25519:" + _HASH * 2
_INSERT: Final = """
    INSERT INTO bench_oplog (
        scope_id, repository_id, node_id, seq, op_id, kind, hlc, causal_deps, payload, prev, hash, signature,
        accepted, reason
    )
    VALUES (?, ?, ?, ?, ?, ?, ?, '[]', ?, ?, ?, ?, 1, NULL)
"""
_MB: Final = 1e6
_VERIFY_S: Final = 120.0
_ROUND_FACTOR: Final = 100_000  # entries to verify for each second of a round
_GROWTH: Final = 4
_QUICK_GROWTH: Final = 2
"""How many times larger the log is that a process is to verify in the same memory."""


@asynccontextmanager
async def _node(environment: BenchEnvironment, home: HomeCase) -> AsyncIterator[MeshNode]:
    settings = home.settings(
        environment.folder, environment.sqld if home.needs_server else None, scope_id="bench"
    )
    async with Mesh.open(settings) as node:
        node.oplog.register(OpKind(_NOTE))
        yield node


def _appending(node: MeshNode) -> Call:
    return lambda: node.oplog.append(_NOTE, _PAYLOAD)


# --- appending -------------------------------------------------------------------------------------


async def append(environment: BenchEnvironment) -> list[Figure]:
    """By many callers at once, on a server and in a file."""
    return [
        await _many_callers(environment, MESH, "sqld", at_least(10_000.0, Of.OURS)),
        await _many_callers(environment, FILE, "file", at_least(15_000.0, Of.OURS)),
    ]


async def _many_callers(environment: BenchEnvironment, home: HomeCase, name: str, target: Target) -> Figure:
    found = await _compare_appends_with_inserts(environment, home, _CALLERS)
    what = f"64 callers, {name}: ops appended to the log / bare inserts of such a row"
    return Figure(f"oplog-append-{name}", what, "1/s", found["ours"], found["raw"], target)


async def one_caller(environment: BenchEnvironment) -> list[Figure]:
    """One op at a time, on a server."""
    found = await _compare_appends_with_inserts(environment, MESH, 1)
    ours, raw = ([1e6 / each for each in found[side]] for side in ("ours", "raw"))
    what = "one caller, sqld: an op appended to the log / a bare insert of such a row"
    return [Figure("oplog-append-one", what, "us", ours, raw, at_most(1.3))]


async def _compare_appends_with_inserts(
    environment: BenchEnvironment, home: HomeCase, callers: int
) -> dict[str, list[float]]:
    """Ops per second (`ours`), and rows inserted by plain scripts through the same store (`raw`)."""
    seconds = environment.pace.seconds
    async with _node(environment, home) as node:
        await _make_bare_table(node)
        ours, raw = _appending(node), writing(node.store, _bare_insert(node))
        sides = {"ours": lambda: rate(ours, seconds, callers), "raw": lambda: rate(raw, seconds, callers)}
        return await alternate(sides, environment.pace.rounds)


async def _make_bare_table(node: MeshNode) -> None:
    """A table like the log, with all its indexes."""
    own = [sql.replace("agent_oplog", "bench_oplog") for sql in ddl() if "agent_oplog" in sql]
    await node.store.write(Script(*(Statement(sql) for sql in own)))


def _bare_insert(node: MeshNode) -> Callable[[], Script]:
    numbers = count(1)
    node_id, start_ms = f"{node.identity.chain}-{new_key()}", node.clock.now_ms
    payload = orjson.dumps(_PAYLOAD).decode()

    def script() -> Script:
        seq = next(numbers)
        hlc = f"{start_ms + seq // 10:013}-{seq % 10:05}-{node_id}"
        link = (payload, _HASH, _HASH, _SIGNATURE)
        values = (*node.store.mesh_id, node_id, seq, new_key(), _NOTE, hlc, *link)
        return Script(Statement(_INSERT, values))

    return script


# --- verifying -------------------------------------------------------------------------------------


class Verification(NamedTuple):
    """What a process found when it verified a log."""

    seconds: float
    entries: int
    peak_bytes: int

    @property
    def per_second(self) -> float:
        """How many entries a second."""
        return self.entries / self.seconds


async def verify(environment: BenchEnvironment) -> list[Figure]:
    """A log written by many callers: in its database, and from an exported file."""
    entries = round(environment.pace.seconds * _ROUND_FACTOR)
    growth = _GROWTH if environment.pace.settled else _QUICK_GROWTH
    small, large = environment.folder / "small.jsonl", environment.folder / "large.jsonl"
    async with _node(environment, FILE) as node, start_program("lines.oplog", environment.folder) as verifier:
        await verifier.ready()
        await _fill(node, entries, small)
        sides = {"file": lambda: _verified(verifier, "-"), "export": lambda: _verified(verifier, small)}
        found = await alternate(sides, environment.pace.rounds)
        before = max(each.peak_bytes for rounds in found.values() for each in rounds)
        await _fill(node, (growth - 1) * entries, large)
        after = [await _verified(verifier, source) for source in ("-", large)]
    what = "hashes, links and signatures of a log written by 64 callers,"
    places = {"file": "in its file", "export": "from an export"}
    grown = (max(each.peak_bytes for each in after) - before) / _MB
    notes = {"entries before": float(found["file"][0].entries), "entries after": float(after[0].entries)}
    return [
        *(
            Figure(
                f"oplog-verify-{name}",
                f"{what} {place}",
                "1/s",
                [each.per_second for each in found[name]],
                target=at_least(40_000.0, Of.OURS) if name == "file" else None,
            )
            for name, place in places.items()
        ),
        Figure(
            "oplog-verify-growth",
            f"{what} growth of the process with that of the log",
            "MB",
            [grown],
            notes=notes,
        ),
    ]


async def _fill(node: MeshNode, entries: int, export: Path) -> None:
    append = _appending(node)

    async def caller() -> None:
        for _ in range(entries // _CALLERS):
            await append()

    await asyncio.gather(*(caller() for _ in range(_CALLERS)))
    await export_log(node.oplog, *node.store.mesh_id, export)


async def _verified(verifier: ProgramProcess, source: str | Path) -> Verification:
    verifier.send(str(source))
    return Verification(*await verifier.report(_VERIFY_S))


# --- the process that verifies -----------------------------------------------------------------------


async def _verify(folder: Path) -> None:
    settings = FILE.settings(folder, None, scope_id="bench")
    async with Mesh.open_command(settings) as mesh:
        print("ready", flush=True)
        while source := (await asyncio.to_thread(sys.stdin.readline)).strip():
            before = perf_counter()
            chains = await mesh.oplog.verify() if source == "-" else verify_export(Path(source)).chains
            seconds = perf_counter() - before
            broken = [chain for chain in chains if chain.problem is not None]
            if broken:
                raise RuntimeError(f"a sound log was found broken: {broken}")
            found = Verification(seconds, sum(chain.entries for chain in chains), peak_bytes())
            print(orjson.dumps(tuple(found)).decode(), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    asyncio.run(_verify(parser.parse_args().folder))
