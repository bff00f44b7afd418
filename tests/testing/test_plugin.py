"""The pytest plugin, as those meet it who have vox-mesh installed."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

pytest_plugins = ["pytester"]

_OPTIONS: Final = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:schemathesis", "-p", "no:randomly")
_HEAVY: Final = ("pydantic", "cryptography", "aiohttp", "httpx", "sqlite3", "orjson", "tenacity", "asyncio")

_PLAIN: Final = """
    import threading

    from vox_mesh.errors import LockHeld

    def test_a_node(vox_memory_mesh):
        job = vox_memory_mesh.jobs.schedule("work")
        assert vox_memory_mesh.jobs.find(job).state == "pending"

    def test_each_test_has_a_mesh_of_its_own(vox_memory_mesh):
        assert vox_memory_mesh.jobs.queries.counts() == {}

    def test_several_nodes_and_a_clock(vox_town, vox_memory_mesh, vox_clock):
        other = vox_town.node("other")
        vox_memory_mesh.locks.acquire("x", ttl=60)
        try:
            other.locks.acquire("x")
        except LockHeld:
            vox_clock.turn("61s")
        assert other.locks.acquire("x").holder_node == "other"

    def test_that_fails(vox_town):
        vox_town.kill("nobody")

    def test_nothing_is_left_behind():
        assert "vox-mesh-sync" not in {thread.name for thread in threading.enumerate()}
"""

_AWAITING: Final = """
    import asyncio

    from vox_mesh.testing import Town

    def test_a_town():
        async def main():
            async with Town() as town:
                one, two = await town.node("one"), await town.node("two")
                job = await one.jobs.schedule("work")
                return await two.jobs.find(job)
        assert asyncio.run(main()).state == "pending"
"""


def test_the_fixtures_are_there_without_being_asked_for(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(_PLAIN)
    result = pytester.runpytest_inprocess(*_OPTIONS, "-p", "no:asyncio")
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(["*NotKnown: no node nobody is there*"])


def test_tests_that_await_need_no_plugin_of_ours(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(_AWAITING)
    pytester.runpytest_inprocess(*_OPTIONS, "-p", "no:asyncio", "-p", "no:anyio").assert_outcomes(passed=1)


def test_the_fixtures_are_explained_where_pytest_lists_them(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess(*_OPTIONS, "-p", "no:asyncio", "--fixtures", "-q")
    for name in ("vox_town", "vox_memory_mesh", "vox_clock"):
        result.stdout.fnmatch_lines([f"{name} -- *"])


def test_who_does_not_use_the_plugin_pays_nothing_for_it() -> None:
    code = (
        "import pytest, sys; before = set(sys.modules)\n"
        "import vox_mesh.testing.plugin\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert "vox_mesh.testing.plugin" in loaded
    assert not [name for name in loaded if name.split(".")[0] in _HEAVY]
    assert {name for name in loaded if name.startswith("vox_mesh")} == {
        *("vox_mesh", "vox_mesh.testing", "vox_mesh.testing.plugin")
    }
