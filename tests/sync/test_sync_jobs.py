"""Typed jobs of the blocking mesh."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from vox_mesh import JobContext, load_settings
from vox_mesh.errors import BadArguments, BadValue, WrongThread
from vox_mesh.sync import Mesh, MeshApp, MeshNode

_PATIENCE_S: Final = 30.0

app = MeshApp()


@dataclass
class Total:
    words: int


@app.job("words.count", retries=1)
def count(context: JobContext, text: str, factor: int = 1) -> Total:
    """Count words."""
    context.log("counting")
    return Total(len(text.split()) * factor)


@app.job("words.all")
def count_all(texts: list[str]) -> list[str]:
    """Schedule other jobs from the thread of a job."""
    return [count.schedule(each).job_id for each in texts]


@app.job("words.sum")
def add_up(context: JobContext, texts: list[str]) -> int:
    """Run other jobs as children."""
    return sum(count.run_child(context, each, factor=2).words for each in texts)


@app.job("words.async")
async def count_async(text: str) -> int:
    """Count in the loop, where nothing may block."""
    try:
        count.schedule(text)
    except WrongThread:
        return len(text.split())
    return 0


@pytest.fixture
def mesh() -> Iterator[MeshNode]:
    """A node in memory that runs the jobs of the app."""
    with app.open(load_settings(_env_file=None)) as mesh, mesh.worker.running():
        yield mesh


def test_jobs_are_scheduled_and_their_results_are_typed_without_await(mesh: MeshNode) -> None:
    handle = count.schedule("to be or not", factor=2)
    assert handle.result(timeout=_PATIENCE_S) == Total(8)
    assert handle.wait().state == "succeeded"
    assert count.handle(handle.job_id).result() == Total(8)
    assert count.delay("to be").result(timeout=_PATIENCE_S) == Total(2)
    handles = count.schedule_all([count.payload("a"), {"text": "b c"}])
    assert [each.result(timeout=_PATIENCE_S) for each in handles] == [Total(1), Total(2)]


def test_jobs_use_other_jobs(mesh: MeshNode) -> None:
    scheduled = count_all.schedule(["a", "b c"]).result(timeout=_PATIENCE_S)
    assert [count.handle(each).result(timeout=_PATIENCE_S) for each in scheduled] == [Total(1), Total(2)]
    assert add_up.schedule(["a", "b c"]).result(timeout=_PATIENCE_S) == 6
    assert count_async.schedule("a b").result(timeout=_PATIENCE_S) == 2


def test_a_later_job_can_be_aborted(mesh: MeshNode) -> None:
    handle = count.with_options(delay="1h").schedule("later")
    assert handle.abort("not needed")
    assert mesh.jobs.find(handle.job_id).reason == "not needed"


def test_a_job_may_be_declared_on_an_open_mesh() -> None:
    with Mesh.open(load_settings(_env_file=None)) as mesh:

        @mesh.job("echo")
        async def echo(text: str) -> str:
            return text

        with mesh.worker.running():
            assert echo.schedule("hello").result(timeout=_PATIENCE_S) == "hello"


def test_run_inline_needs_no_mesh() -> None:
    assert count.run_inline("to be") == Total(2)
    assert add_up.run_inline(["a", "b c"]) == 6
    with pytest.raises(BadArguments, match=r"argument factor of words\.count: must be a valid integer"):
        count.run_inline("to be", factor="two")  # type: ignore[arg-type]


async def test_run_inline_does_not_stop_a_loop() -> None:
    with pytest.raises(WrongThread):
        count.run_inline("to be")


def test_without_an_open_mesh_nothing_is_scheduled() -> None:
    with pytest.raises(BadValue, match="the app has no open mesh"):
        count.schedule("to be")
