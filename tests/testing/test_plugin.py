"""The pytest plugin, as users of an installed vox-mesh meet it."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

import vox_mesh.testing.harness  # noqa: F401 - loaded once: in-process runs forget what they import

pytest_plugins = ["pytester"]

_OPTIONS: Final = (
    *("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:schemathesis", "-p", "no:randomly"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # of plugins that this process has loaded
)
_HEAVY: Final = ("pydantic", "cryptography", "aiohttp", "httpx", "sqlite3", "orjson", "tenacity", "asyncio")

_PLAIN: Final = """
    import threading

    from vox_mesh.errors import LockHeld

    def test_a_node(vox_memory_mesh):
        job = vox_memory_mesh.jobs.schedule("work")
        assert vox_memory_mesh.jobs.find(job).state == "pending"

    def test_each_test_has_a_mesh_of_its_own(vox_memory_mesh):
        assert vox_memory_mesh.jobs.queries.counts() == {}

    def test_several_nodes_and_a_clock(vox_mesh_harness, vox_memory_mesh, vox_manual_clock):
        other = vox_mesh_harness.node("other")
        vox_memory_mesh.locks.acquire("x", ttl=60)
        try:
            other.locks.acquire("x")
        except LockHeld:
            vox_manual_clock.advance("61s")
        assert other.locks.acquire("x").holder_node == "other"

    def test_that_fails(vox_mesh_harness):
        vox_mesh_harness.kill("absent")

    def test_nothing_is_left_behind():
        assert "vox-mesh-sync" not in {thread.name for thread in threading.enumerate()}
"""

_AWAITING: Final = """
    import asyncio

    from vox_mesh.testing import MeshHarness

    def test_a_harness():
        async def main():
            async with MeshHarness() as harness:
                one, two = await harness.node("one"), await harness.node("two")
                job = await one.jobs.schedule("work")
                return await two.jobs.find(job)
        assert asyncio.run(main()).state == "pending"
"""

_DEPRECATED: Final = """
    import pytest

    from vox_mesh import sync, testing

    def test_fixtures(vox_town, vox_clock, vox_mesh_harness):
        assert vox_town is vox_mesh_harness
        before_ms = vox_clock.now_ms
        vox_clock.turn("1h")
        assert vox_clock.now_ms - before_ms >= 3_600_000

    def test_classes():
        for old, new in (("Town", "MeshHarness"), ("TownClock", "ManualClock")):
            for module in (testing, sync):
                with pytest.warns(DeprecationWarning, match=f"{old} is deprecated: use .*{new}"):
                    assert getattr(module, old) is getattr(module, new)
"""


def test_the_fixtures_need_no_configuration(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(_PLAIN)
    result = pytester.runpytest_inprocess(*_OPTIONS, "-p", "no:asyncio")
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(["*NotKnown: node absent is not running*"])


def test_the_old_names_warn_and_keep_working(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(_DEPRECATED)
    result = pytester.runpytest_inprocess(*_OPTIONS, "-p", "no:asyncio", "-p", "no:anyio")
    result.assert_outcomes(passed=2, warnings=3)
    for warning in ("fixture vox_town", "fixture vox_clock", "ManualClock.turn"):
        result.stdout.fnmatch_lines([f"*DeprecationWarning: *{warning} is deprecated*"])


def test_async_tests_need_no_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(_AWAITING)
    pytester.runpytest_inprocess(*_OPTIONS, "-p", "no:asyncio", "-p", "no:anyio").assert_outcomes(passed=1)


def test_pytest_lists_the_fixtures_with_a_description(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess(*_OPTIONS, "-p", "no:asyncio", "--fixtures", "-q")
    for name in ("vox_mesh_harness", "vox_memory_mesh", "vox_manual_clock"):
        result.stdout.fnmatch_lines([f"{name} -- *"])


def test_the_plugin_imports_nothing_heavy() -> None:
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
        *("vox_mesh", "vox_mesh.testing", "vox_mesh.testing.plugin"),
        *("vox_mesh.observability", "vox_mesh.observability.deprecation"),
    }
