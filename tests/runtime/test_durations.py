"""Every duration of the Python interface is taken in the same forms, and refused with the same words."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from vox_mesh import JobContext, Yield, sync
from vox_mesh.errors import BadValue, MeshError
from vox_mesh.model.base.durations import Duration
from vox_mesh.node import MeshNode
from vox_mesh.oplog.op_kinds import OpKind
from vox_mesh.testing import MeshHarness

_STUB: Final = Path(sync.__file__).with_suffix(".pyi")
_NAMES: Final = {
    *("ack_within", "backoff", "delay", "duration", "grace", "lease", "patience", "retry_in", "timeout"),
    *("ttl", "wait"),
}
_INTERNAL: Final = {
    "Store",
    "Leadership",
    "LockSessions",
    "Claims",
}  # each takes seconds that the mesh has computed
_FORMS: Final = (90, 90.0, "90", "90s", "1m30s", "PT1M30S", timedelta(seconds=90))
_NOTE: Final = OpKind("test.note")


@pytest.fixture
async def node() -> AsyncIterator[MeshNode]:
    """A node in memory."""
    async with MeshHarness() as harness:
        yield await harness.node("one")


def test_every_parameter_for_a_duration_has_the_type_of_durations() -> None:
    tree = ast.parse(_STUB.read_text())
    classes = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name not in _INTERNAL]
    calls = [
        (found.name, each) for found in classes for each in found.body if isinstance(each, ast.FunctionDef)
    ]
    given = [
        (f"{owner}.{call.name}({each.arg})", ast.unparse(each.annotation))
        for owner, call in calls
        for each in (*call.args.args, *call.args.kwonlyargs)
        if each.arg in _NAMES and each.annotation is not None and call.name != "acquire_own"
    ]
    assert len(given) > 25
    assert [name for name, type_ in given if not type_.startswith("Duration")] == []


Call = Callable[[MeshNode, Any], Awaitable[object]]


async def _run_worker(node: MeshNode, value: Duration) -> None:
    if "a.b" not in node.worker.kinds:
        node.worker.handles("a.b")(lambda context: None)
    async with node.worker.running(grace=value):
        pass


async def _raise_yield(_: MeshNode, value: Duration) -> None:
    assert Yield(delay=value).delay_ms == 90_000


async def _schedule(node: MeshNode, value: Duration) -> None:
    job = await node.jobs.schedule("a.b", lease=value, backoff=value, timeout=value)
    found = await node.jobs.find(job.job_id)
    assert (found.lease_ms, found.backoff_ms, found.core["timeout"]) == (90_000, 90_000, 90)


async def _limit_calls(_: MeshNode, value: Duration) -> None:
    with sync.timeout(value):
        pass


async def _lock(node: MeshNode, value: Duration) -> None:
    await node.locks.release(await node.locks.acquire("k", agent="ada", wait=value, ttl=value))


async def _lock_until_phase(node: MeshNode, value: Duration) -> None:
    await node.locks.release(await node.rhythm.beat_locks.acquire("k", agent="ada", wait=value))


async def _append(node: MeshNode, value: Duration) -> None:
    node.oplog.register(_NOTE)
    await node.oplog.append("test.note", {}, timeout=value)


CALLS: Final[dict[str, Call]] = {
    "schedule": _schedule,
    "grace of a worker": _run_worker,
    "delay of a yield": _raise_yield,
    "limit of blocking calls": _limit_calls,
    "stop of a worker": lambda node, value: node.worker.stop(value),
    "beat lock": _lock_until_phase,
    "lock": _lock,
    "status claims": lambda node, value: node.rhythm.status.flush(value),
    "op": _append,
    "message": lambda node, value: node.messages.send("bob", "hi", sender="ada", ttl=value, timeout=value),
}


@pytest.mark.parametrize("name", CALLS)
async def test_all_forms_are_taken_and_others_refused_with_the_same_words(node: MeshNode, name: str) -> None:
    async with asyncio.timeout(30):
        for value in _FORMS:
            await CALLS[name](node, value)
        with pytest.raises(MeshError, match=r": 'soon' is not a duration \(write 90, 90s, 5m, 1h30m"):
            await CALLS[name](node, "soon")


async def test_a_running_job_is_yielded_for_a_duration_in_any_form(node: MeshNode) -> None:
    begun = asyncio.Event()

    @node.worker.handles("a.b")
    async def work(context: JobContext) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(30), node.worker.running(grace="0s"):
        job = await node.jobs.schedule("a.b")
        await begun.wait()
        with pytest.raises(BadValue, match="delay: 'soon' is not a duration"):
            await node.jobs.yield_job(job, delay="soon")
        with pytest.raises(BadValue, match="delay must be seconds between 0 and 31536000, got '366d'"):
            await node.jobs.yield_job(job, delay="366d")
        await node.jobs.yield_job(job, delay="1h30m")
        found = await node.jobs.find(job)
        assert 0 <= found.not_before_ms - 5_400_000 - found.created_ms < 60_000
