"""The gate lists the tests that passed on retry, and fails where one of them draws from the run's seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.gate import MAX_RETRIED, Outcome, faults_of, passed_on_retry, read_report
from tools.rewrite_asserts import cached_path, is_cached, rewrite
from tools.seeds import VARIABLE, seed_of_test

_REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_good" />
<testcase classname="tests.a" name="test_bad"><failure message="no">no</failure></testcase>
<testcase classname="tests.a" name="test_drawn"><properties><property name="seed" value="7" /></properties>
<error message="no">no</error></testcase>
</testsuite></testsuites>"""

_GOOD, _BAD = Outcome(has_failed=False, is_seeded=False), Outcome(has_failed=True, is_seeded=False)
_DRAWN = Outcome(has_failed=True, is_seeded=True)


def test_a_report_says_which_tests_failed_and_which_draw(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(_REPORT)
    found = read_report(tmp_path / "report.xml")
    assert found == {"tests.a::test_good": _GOOD, "tests.a::test_bad": _BAD, "tests.a::test_drawn": _DRAWN}


def test_only_what_failed_and_then_passed_was_retried() -> None:
    first = {"good": _GOOD, "mended": _BAD, "broken": _BAD, "not run again": _BAD}
    assert passed_on_retry(first, {"mended": _GOOD, "broken": _BAD}) == ["mended"]


def test_a_test_that_draws_must_not_need_a_retry() -> None:
    assert faults_of(["a"], {"a": _BAD}) == []
    assert len(faults_of(["a"], {"a": _DRAWN})) == 1


def test_few_retries_are_allowed() -> None:
    names = [str(number) for number in range(MAX_RETRIED + 1)]
    first = dict.fromkeys(names, _BAD)
    assert faults_of(names[:-1], first) == []
    assert len(faults_of(names, first)) == 1


def test_pytest_takes_a_module_that_was_rewritten_before_from_its_cache(tmp_path: Path) -> None:
    module = tmp_path / "test_numbers.py"
    module.write_text("def test_they_are_equal():\n    one, two = 1, 2\n    assert one == two\n")
    rewrite(module)
    assert is_cached(module)
    kept = cached_path(module).stat()
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(module)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert ran.returncode == 1
    assert "assert 1 == 2" in ran.stdout  # as it says only of rewritten ones
    assert cached_path(module).stat().st_mtime_ns == kept.st_mtime_ns
    module.write_text("")
    assert not is_cached(module)


def test_a_test_that_draws_says_so_in_its_report(request: pytest.FixtureRequest, seed: int) -> None:
    assert request.node.user_properties == [("seed", seed)]
    assert request.config.getini("junit_family") == "xunit1"  # else a retry ends in a warning


def test_the_seed_of_a_test_is_its_own_and_the_same_in_a_retry() -> None:
    assert seed_of_test("a", 5) == seed_of_test("a", 5) != seed_of_test("b", 5)
    assert seed_of_test("a", 6) != seed_of_test("a", 5)


def test_commands_of_a_test_do_not_see_the_seed(seed: int) -> None:
    assert VARIABLE not in os.environ


def test_a_run_ends_its_fork_server_and_warns_of_nothing() -> None:
    code = "import tools.forked as forked; forked._LOADED.clear(); forked.begin()"
    ended = subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
