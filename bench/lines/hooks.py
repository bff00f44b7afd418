"""Lines on hooks: before an edit over HTTP and by the script, and how soon mail wakes an idle agent."""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import orjson

from bench.environment import BenchEnvironment
from bench.figures import Figure, Of, at_most
from bench.lines.service import up_node
from bench.programs.http_wire import HttpWire
from vox_mesh.hosts.hooks.script import SCRIPT
from vox_mesh.nodes.node_sockets import FILE
from vox_mesh.store.slots import folder_of_slot

_EDITS: Final = 400
_RUNS: Final = 60
_MAILS: Final = 40
_QUICK: Final = 4  # times fewer of each, for a short look
_AGENT: Final = "bench"
_SETTINGS: Final = {"VOX_MESH_ENABLED": "1", "VOX_MESH_RATE_LIMIT": "100000"}
_HTTP_P50_MS: Final = 15.0
_HTTP_P99_MS: Final = 50.0
_SCRIPT_MS: Final = 80.0
_WAKE_MS: Final = 100.0


async def hooks(environment: BenchEnvironment) -> list[Figure]:
    """Measure hooks of an agent that edits files of its own, next to requests that do nothing."""
    divisor = 1 if environment.pace.settled else _QUICK
    folder = environment.folder / "hooks"
    home = folder / ".vox"
    figures: dict[str, list[float]] = {}
    async with up_node(folder, {**_SETTINGS, "VOX_MESH_HOME": str(home)}):
        socket = folder_of_slot(home, "1") / FILE
        await asyncio.to_thread((folder / ".git").mkdir)
        for number in range(environment.pace.few_rounds):
            async with HttpWire.to_socket(socket, _AGENT) as wire:
                await _edits(wire, folder, number, _EDITS // divisor, figures)
            await _script(home, folder, _RUNS // divisor, figures)
            await _wakes(socket, folder, _MAILS // divisor, figures)
    return _figures(figures)


async def _edits(
    wire: HttpWire, folder: Path, number: int, count: int, figures: dict[str, list[float]]
) -> None:
    """Edit files again and again: the first edit of each acquires its lock, the next find it held."""

    async def edit(at: int) -> None:
        body = orjson.dumps(_event(folder, f"src/{number}-{at % max(1, count // 8)}.py"))
        answer = await wire.ask("POST", "/v1/hooks/claude?auto=true", body)
        if answer.status != HTTPStatus.OK or answer.body != b"{}":
            raise RuntimeError(f"an edit was answered with {answer.status}: {answer.body.decode()}")

    took = sorted([await _timed(partial(edit, at)) for at in range(count)])
    figures.setdefault("p50", []).append(statistics.median(took))
    figures.setdefault("p99", []).append(took[int(len(took) * 0.99)])
    bare = [await _timed(lambda: wire.ask("GET", "/livez")) for _ in range(count)]
    figures.setdefault("bare", []).append(statistics.median(bare))


async def _script(home: Path, folder: Path, count: int, figures: dict[str, list[float]]) -> None:
    raw = orjson.dumps(_event(folder, "src/script.py"))
    arguments = ("claude", "--home", str(home), "--project", str(folder), "--auto")
    sides = {"script": (str(SCRIPT), *arguments), "python": ("-c", "pass")}
    took: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(count):
        for name, words in sides.items():
            began = perf_counter()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-IS", *words),
                env={"VOX_AGENT_ID": _AGENT},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            out, _ = await process.communicate(raw)
            took[name].append((perf_counter() - began) * 1e3)
            if name == "script" and out.strip() != b"{}":
                raise RuntimeError(f"the script printed {out.decode()}")
    for name, each in took.items():
        figures.setdefault(name, []).append(statistics.median(each))


async def _wakes(socket: Path, folder: Path, count: int, figures: dict[str, list[float]]) -> None:
    """Send mail to an agent that waits; the time is from the answer to the sender to that of the waiter."""
    stop = orjson.dumps({"hook_event_name": "Stop", "session_id": "bench", "cwd": str(folder)})
    took: list[float] = []
    async with HttpWire.to_socket(socket, "idle") as waiter, HttpWire.to_socket(socket, "sender") as sender:
        for _ in range(count):
            woken = asyncio.create_task(_woken(waiter, stop))
            await asyncio.sleep(0.02)  # until it waits
            body = orjson.dumps({"to": "idle", "payload": "wake up", "sender": "sender"})
            answer = await sender.ask("POST", "/v1/messages", body)
            sent = perf_counter()
            if answer.status not in (HTTPStatus.OK, HTTPStatus.CREATED):
                raise RuntimeError(f"a message was answered with {answer.status}: {answer.body.decode()}")
            took.append(max(0.0, await woken - sent) * 1e3)
    figures.setdefault("wake", []).append(statistics.median(took))


async def _woken(waiter: HttpWire, stop: bytes) -> float:
    answer = await waiter.ask("POST", "/v1/hooks/claude/wait?timeout=30s", stop)
    if b"wake up" not in answer.body:
        raise RuntimeError(f"the waiter was answered with {answer.status}: {answer.body.decode()}")
    return perf_counter()


def _event(folder: Path, path: str) -> dict[str, Any]:
    return {
        "session_id": "bench",
        "cwd": str(folder),
        "hook_event_name": "PreToolUse",
        "tool_name": "Edit",
        "tool_input": {"file_path": str(folder / path), "old_string": "a", "new_string": "b"},
    }


def _figures(found: dict[str, list[float]]) -> list[Figure]:
    edit = "file, a hook before an edit over the socket of a node"
    return [
        Figure(
            "hook-edit-p50",
            f"{edit} / a request that does nothing, p50",
            "ms",
            found["p50"],
            found["bare"],
            at_most(_HTTP_P50_MS, Of.OURS),
        ),
        Figure(
            "hook-edit-p99",
            f"{edit} / a request that does nothing, p99 / p50",
            "ms",
            found["p99"],
            found["bare"],
            at_most(_HTTP_P99_MS, Of.OURS),
        ),
        Figure(
            "hook-script",
            "file, a hook before an edit by the script / an interpreter that does nothing, p50",
            "ms",
            found["script"],
            found["python"],
            at_most(_SCRIPT_MS, Of.OURS),
        ),
        Figure(
            "hook-wake",
            "file, from a message that is stored to the answer of the waiter of its receiver, p50",
            "ms",
            found["wake"],
            target=at_most(_WAKE_MS, Of.OURS),
        ),
    ]


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    began = perf_counter()
    await work()
    return (perf_counter() - began) * 1e3
