"""Lines on a service under attack: what a well-behaved client sees while another one does its worst."""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

import orjson

from bench.bulk_rows import fill_jobs, fill_log, fill_messages
from bench.environment import BenchEnvironment
from bench.figures import Figure, Of, at_most
from bench.lines.service import up_node
from bench.measure import p99
from bench.programs.http_wire import HttpWire
from bench.programs.subprocess_driver import ProgramProcess, start_program
from tools.homes import FILE, environment
from vox_mesh import Mesh, Settings
from vox_mesh.model.jobs.manifest import Manifest

_TOKEN: Final = "a-token-of-the-fleet-that-was-measured"
_READ_TOKEN: Final = "a-token-for-those-who-only-look-at-it"
_SIGNED_JOBS: Final = 2_000
_ROWS: Final = 5_000
_AT_ONCE: Final = 250
_LOCKS: Final = 50
_NASTY: Final = "**/*" + "?a" * 120 + "b*"
_ROUND_S: Final = 20.0
_LIVEZ_MS: Final = 50.0


async def reads(environment_: BenchEnvironment) -> list[Figure]:
    """Time `/livez` and a lock, without and with a client that reads as hard as it can."""
    rounds: list[tuple[dict[str, Any], dict[str, Any]]] = []
    seconds = _ROUND_S if environment_.pace.settled else 3.0
    async with _node(environment_) as url, AsyncExitStack() as stack:
        probe, hostile = [
            await stack.enter_async_context(start_program(f"programs.{name}", url, token))
            for name, token in (("service_probe", _TOKEN), ("hostile_reader", _READ_TOKEN))
        ]
        for program in (probe, hostile):
            await program.ready()
        answers: dict[str, float] = {}
        for _ in range(environment_.pace.few_rounds):
            quiet = await _measure(probe, seconds)
            await _signal(hostile, "start")
            loud = await _measure(probe, seconds)
            answers = await _signal(hostile, "stop")
            rounds.append((quiet, loud))
    return [
        *_figures("livez", "`/livez`", rounds, answers, at_most(_LIVEZ_MS, Of.OURS)),
        *_figures("lock", "a lock acquired and released", rounds, answers),
    ]


def _figures(
    name: str,
    what: str,
    rounds: Sequence[tuple[dict[str, Any], dict[str, Any]]],
    answers: dict[str, float],
    target: Any = None,
) -> list[Figure]:
    quiet, loud = [each[0][name] for each in rounds], [each[1][name] for each in rounds]
    notes = {
        "longest": max(map(max, loud)),
        "failures": float(sum(each[1]["failures"] for each in rounds)),
        **{f"answers {status}": float(count) for status, count in sorted(answers.items())},
    }
    under = f"{what} while a hostile client reads / without it"
    medians = [statistics.median(each) for each in loud], [statistics.median(each) for each in quiet]
    tails = [p99(each) for each in loud], [p99(each) for each in quiet]
    return [
        Figure(f"hostile-reads-{name}-p50", f"{under}, p50", "ms", *medians),
        Figure(f"hostile-reads-{name}-p99", f"{under}, p99", "ms", *tails, target=target, notes=notes),
    ]


async def _measure(probe: ProgramProcess, seconds: float) -> dict[str, Any]:
    probe.send(str(seconds))
    report: dict[str, Any] = await probe.report(seconds)
    return report


async def _signal(program: ProgramProcess, signal: str) -> dict[str, float]:
    program.send(signal)
    report: dict[str, float] = await program.report(0.0)
    return report


@asynccontextmanager
async def _node(environment_: BenchEnvironment) -> AsyncIterator[str]:
    """A node process with a populated database; the address of its service."""
    tokens = {"token": _TOKEN, "read_token": _READ_TOKEN}
    settings = FILE.settings(environment_.folder, None, http=True, bind="127.0.0.1:0", **tokens)
    await _populate(settings)
    async with up_node(environment_.folder / "node", environment(settings)) as node:
        async with HttpWire.to_url(node.url, _TOKEN) as wire:
            for number in range(_LOCKS):
                body = {"keys": [f"file:{number}/{_NASTY}"], "agent": "holder", "ttl": "1h"}
                answer = await wire.ask("POST", "/v1/locks", orjson.dumps(body))
                if answer.status != HTTPStatus.CREATED:
                    raise RuntimeError(f"a lock was refused: {answer.body!r}")
        yield node.url


async def _populate(settings: Settings) -> None:
    """Fill the tables, in part with jobs that are in the log and can be verified."""
    async with Mesh.open(settings.model_copy(update={"http": False})) as node:
        for first in range(0, _SIGNED_JOBS, _AT_ONCE):
            payloads = ({"number": number, "text": "x" * 500} for number in range(first, first + _AT_ONCE))
            await node.jobs.schedule_all([Manifest(kind="bench.any", payload=each) for each in payloads])
        await fill_jobs(node, _ROWS)
        await fill_messages(node, "bench", _ROWS, 20)
        await fill_log(node, _ROWS)
