"""Lines on hooks: before an edit over HTTP and by the script, and how soon mail wakes an idle agent."""

from __future__ import annotations

import asyncio
import statistics
from collections import defaultdict
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path
from time import perf_counter
from typing import Final

import orjson

from bench.environment import BenchEnvironment, Rounds, give_token
from bench.figures import Figure, Of, at_most
from bench.lines.service import up_node
from bench.measure import p99
from bench.programs.hook_host import HookHost, run_bare_interpreter, woken_at
from bench.programs.http_wire import HttpWire
from tools import homes
from tools.sqld import free_port
from vox_mesh import Mesh
from vox_mesh.nodes.node_sockets import find_served_socket

_EDITS: Final = 400
_RUNS: Final = 60
_MAILS: Final = 30
_QUICK: Final = 5  # times fewer of each, for a short look
_AGENT: Final = "bench"
_TEXT: Final = "wake up"
_IDLE_S: Final = 0.5
"""Until a waiter waits: it has started, and the node has looked for mail."""

_HTTP_P50_MS: Final = 15.0
_HTTP_P99_MS: Final = 50.0
_SCRIPT_MS: Final = 80.0
_WAKE_MS: Final = 100.0


async def hooks(environment: BenchEnvironment) -> list[Figure]:
    """Measure the handlers that are installed for Claude Code, of an agent with a token."""
    divisor = 1 if environment.pace.settled else _QUICK
    settings = homes.FILE.settings(
        environment.folder, None, http=True, bind=f"127.0.0.1:{free_port()}", rate_limit="100000"
    )
    project = environment.folder / "project"
    token = await give_token(settings, _AGENT)
    async with up_node(project, homes.environment(settings)), Mesh.open_command(settings) as mesh:
        (project / ".git").mkdir()
        rounds = _HookRounds(HookHost(project, settings.home_dir, _AGENT, f"http://{settings.bind}"), token)
        for number in range(environment.pace.few_rounds):
            await rounds.edit_over_http(number, _EDITS // divisor, f"http://{settings.bind}")
            await rounds.edit_by_script(_RUNS // divisor)
            await rounds.wake(mesh, settings.home_dir, _MAILS // divisor)
    return _figures(rounds.found)


class _HookRounds:
    """Measures the handlers of a host; each call is a round."""

    def __init__(self, host: HookHost, token: str) -> None:
        self._host = host
        self._token = token
        self.found: Rounds = defaultdict(list)

    async def edit_over_http(self, number: int, count: int, url: str) -> None:
        """Edit files again and again: the first edit of each acquires its lock, the next find it held."""
        events = [self._host.edit_of(f"src/{number}-{each}.py") for each in range(max(1, count // 8))]

        async def edit(at: int) -> None:
            answer = await self._host.ask_over_http(events[at % len(events)], self._token)
            if answer.status != HTTPStatus.OK or answer.body != b"{}":
                raise RuntimeError(f"an edit was answered with {answer.status}: {answer.body.decode()}")

        async def bare(_: int) -> None:
            async with HttpWire.to_url(url, self._token) as wire:
                await wire.ask("GET", "/livez")

        took = [await _timed(edit, at) for at in range(count)]
        self.found["p50"].append(statistics.median(took))
        self.found["p99"].append(p99(took))
        self.found["bare"].append(statistics.median([await _timed(bare, at) for at in range(count)]))

    async def edit_by_script(self, count: int) -> None:
        """Run the script and an interpreter that does nothing in turn."""
        event = self._host.edit_of("src/script.py")
        costs = [
            (
                await asyncio.to_thread(self._host.ask_by_command, event),
                await asyncio.to_thread(run_bare_interpreter),
            )
            for _ in range(count)
        ]
        for name, at in (("script", 0), ("python", 1)):
            self.found[name].append(statistics.median(each[at].wall_ms for each in costs))
            self.found[f"{name}-cpu"].append(statistics.median(each[at].cpu_ms for each in costs))

    async def wake(self, mesh: Mesh, home: Path, count: int) -> None:
        """Send mail while the waiter waits: from this process, and by the node that the waiter asks.

        The first time is from the return of the commit to the end of the waiter's process, the second one
        from the request, of which the commit is a part.
        """
        socket = find_served_socket(home)
        assert socket is not None, "the node is up"

        async def by_node() -> None:
            body = orjson.dumps({"to": _AGENT, "payload": _TEXT, "sender": "sender"})
            answer = await wire.ask("POST", "/v1/messages", body)
            if answer.status not in (HTTPStatus.OK, HTTPStatus.CREATED):
                raise RuntimeError(f"a message was answered with {answer.status}: {answer.body.decode()}")

        async def by_process() -> None:
            await mesh.messages.send(_AGENT, _TEXT, sender="sender")

        from_commit, from_request = [], []
        async with HttpWire.to_socket(socket, "sender") as wire:
            for _ in range(count):
                _, committed, ended = await self._woken(by_process)
                from_commit.append((ended - committed) * 1e3)
                began, _, ended = await self._woken(by_node)
                from_request.append((ended - began) * 1e3)
                await _read_mail(mesh)
        self.found["wake"].append(statistics.median(from_commit))
        self.found["wake-node"].append(statistics.median(from_request))

    async def _woken(self, send: Callable[[], Awaitable[None]]) -> tuple[float, float, float]:
        """Return when a message was begun to be sent, when it was sent, and when the waiter had ended."""
        waiter = self._host.start_waiter()
        ending = asyncio.create_task(asyncio.to_thread(woken_at, waiter, _TEXT))
        try:
            await asyncio.sleep(_IDLE_S)
            began = perf_counter()
            await send()
            sent = perf_counter()
            return began, sent, await ending
        finally:
            if waiter.poll() is None:
                waiter.kill()


async def _read_mail(mesh: Mesh) -> None:
    """Acknowledge what has woken the agent."""
    left = 2
    async for message in mesh.messages.receive(_AGENT):
        await mesh.messages.ack(message)
        left -= 1
        if not left:
            return


def _figures(found: Rounds) -> list[Figure]:
    edit = "file, a hook before an edit over TCP, with the token of an agent"
    script = "file, a hook before an edit by the installed command"
    bare = "an interpreter that does nothing"
    wake = "to the end of the process that waits for its receiver, p50"

    def figure(name: str, what: str, ours: str, raw: str, limit_ms: float | None) -> Figure:
        target = None if limit_ms is None else at_most(limit_ms, Of.OURS)
        return Figure(f"hook-{name}", what, "ms", found[ours], found[raw] if raw else (), target)

    return [
        figure("edit-p50", f"{edit} / a request that does nothing, p50", "p50", "bare", _HTTP_P50_MS),
        figure("edit-p99", f"{edit} / a request that does nothing, p99 / p50", "p99", "bare", _HTTP_P99_MS),
        figure("script", f"{script} / {bare}, p50", "script", "python", _SCRIPT_MS),
        figure("script-cpu", f"{script} / {bare}, processor time, p50", "script-cpu", "python-cpu", None),
        figure("wake", f"file, from the commit of a message in another process {wake}", "wake", "", _WAKE_MS),
        figure("wake-node", f"file, from a request to send a message {wake}", "wake-node", "", _WAKE_MS),
    ]


async def _timed(work: Callable[[int], Awaitable[None]], at: int) -> float:
    began = perf_counter()
    await work(at)
    return (perf_counter() - began) * 1e3
