"""Django: tasks are jobs, which a worker of the mesh runs."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.frameworks.loading import load, needs
from tests.support.messages.messaging import PATIENCE_S
from vox_mesh import Mesh, load_settings
from vox_mesh.errors import BadSettings
from vox_mesh.jobs.worker.handlers import load_handlers
from vox_mesh.node import MeshNode

pytestmark = needs("django", "django")

_SETTINGS = "tests.support.frameworks.django_settings"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The module with the tasks, of a project with a mesh in a file."""
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", _SETTINGS)
    monkeypatch.setenv("VOX_MESH_ENABLED", "1")
    monkeypatch.setenv("VOX_MESH_HOME", str(tmp_path / "vox"))
    monkeypatch.setenv("VOX_MESH_HTTP", "0")
    site = load("tests.support.frameworks.django_site")
    site.events.clear()
    yield site
    site.close_meshes()


@pytest.fixture
async def worker(site: Any) -> AsyncIterator[MeshNode]:
    """A worker of the mesh that runs the tasks of the project."""
    async with Mesh.open(load_settings(_env_file=None)) as node:
        node.worker.handlers.include(load_handlers(["vox_mesh.integrations.django:app"]))
        async with node.worker.running():
            yield node


async def done(node: MeshNode, result: Any) -> Any:
    """Wait until a task has ended, and return its result."""
    await node.jobs.wait(result.id, timeout=PATIENCE_S)
    await result.arefresh()
    return result


async def test_a_worker_runs_what_is_enqueued(worker: MeshNode, site: Any) -> None:
    result = await site.add.aenqueue(1, other=2)
    assert (result.status, result.attempts, len(result.id)) == ("READY", 0, 64)
    await done(worker, result)
    assert (result.status, result.return_value, result.errors) == ("SUCCESSFUL", 3, [])
    assert result.worker_ids == [worker.identity.node_id]
    assert result.enqueued_at <= result.started_at <= result.finished_at <= datetime.now(UTC)
    assert (await site.add.aget_result(result.id)).return_value == 3
    assert [event for event in site.events if event[1] == "add"] == [
        ("task_enqueued", "add", "READY"),
        ("task_started", "add", "RUNNING"),
        ("task_finished", "add", "SUCCESSFUL"),
    ]


async def test_async_tasks_queues_and_priorities(worker: MeshNode, site: Any) -> None:
    result = await done(worker, await site.send.aenqueue("ada@example.org"))
    assert result.return_value[0] == "ada@example.org"
    job = await worker.jobs.find(result.id)
    assert (job.kind, job.priority) == ("django.mail", 3)
    for priority, expected in ((-1, 0), (0, 1), (50, 2)):
        task = site.add.using(priority=priority)
        assert (await worker.jobs.find((await task.aenqueue(1, 1)).id)).priority == expected


async def test_a_failure_is_reported_and_not_tried_again(worker: MeshNode, site: Any) -> None:
    result = await done(worker, await site.fail.aenqueue("no such thing"))
    assert (result.status, result.attempts) == ("FAILED", 1)
    (error,) = result.errors
    assert error.exception_class is LookupError
    assert "no such thing" in error.traceback
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    assert site.events[-1] == ("task_finished", "fail", "FAILED")


async def test_retries_are_an_option_of_the_backend(worker: MeshNode, site: Any) -> None:
    result = await done(worker, await site.third_time.aenqueue())
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", 3, 3)


async def test_a_task_enqueues_another_one(worker: MeshNode, site: Any) -> None:
    result = await done(worker, await site.chain.aenqueue(4))
    inner = await site.add.aget_result(result.return_value)
    assert (await done(worker, inner)).return_value == 5


async def test_a_task_is_deferred_until_its_time(worker: MeshNode, site: Any) -> None:
    at = datetime.now(UTC) + timedelta(days=1)
    result = await site.add.using(run_after=at).aenqueue(1, 2)
    job = await worker.jobs.find(result.id)
    assert (job.state, job.not_before_ms) == ("pending", int(at.timestamp() * 1_000))


async def test_only_declared_tasks_are_called(worker: MeshNode, site: Any) -> None:
    for name in ("tests.support.frameworks.django_site.no_task", "os.getcwd", "no.such.module", 7):
        payload: dict[str, Any] = {"task": name, "backend": "default", "args": [], "kwargs": {}}
        job = await worker.jobs.schedule("django.default", payload, max_attempts=5)
        ended = await worker.jobs.wait(job, timeout=PATIENCE_S)
        assert (ended.state, ended.attempts) == ("failed", 1)
        assert "no task" in (ended.reason or "")
        with pytest.raises(site.TaskResultDoesNotExist):
            await site.task_backends["default"].aget_result(job.job_id)


async def test_what_is_no_task_has_no_result(worker: MeshNode, site: Any) -> None:
    job = await worker.jobs.schedule("other")
    for result_id in (job.job_id, "0" * 64, "not an id"):
        with pytest.raises(site.TaskResultDoesNotExist):
            await site.task_backends["default"].aget_result(result_id)


async def test_without_a_mesh_nothing_is_enqueued(site: Any) -> None:
    with pytest.raises(BadSettings, match="`enqueue` needs a mesh"):
        await site.nowhere.aenqueue()


def test_a_forked_process_opens_a_mesh_of_its_own(site: Any, tmp_path: Path) -> None:
    first = site.add.enqueue(1, 1)
    answer = tmp_path / "answer"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads, which is what is tested
        child = os.fork()
    if child == 0:
        try:
            answer.write_text(site.add.enqueue(2, 2).id)
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    found = site.add.get_result(answer.read_text())
    assert (found.args, found.status) == ([2, 2], "READY")
    assert site.add.get_result(first.id).args == [1, 1]


async def test_results_of_many_threads(worker: MeshNode, site: Any) -> None:
    results = await asyncio.gather(*(asyncio.to_thread(site.add.enqueue, each, 1) for each in range(8)))
    assert [(await done(worker, each)).return_value for each in results] == [*range(1, 9)]
