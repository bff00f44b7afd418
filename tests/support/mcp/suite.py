"""The official MCP conformance suite, run against a server, and what it found of each scenario."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from tools.install_npm import packages, run_node

_RUN_S: Final = 240
_SCENARIO_MS: Final = 60_000
_NAMED: Final = re.compile(r"server-(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z")
_LISTED: Final = re.compile(r"^ +- (?P<scenario>\S+)", re.MULTILINE)
_ABOUT_WIRE: Final = "wire-schema-valid"
"""The check that every message fits the schema of the protocol; it says nothing of the scenario itself."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the checks of one scenario found."""

    passed: int
    faults: Mapping[str, str]
    """What failed, or is warned of, by the ids of the checks."""

    @property
    def has_passed(self) -> bool:
        """Return whether the scenario was run, and every check of it is good."""
        return self.passed > 0 and not self.faults


@cache
def scenarios(revision: str | None = None) -> frozenset[str]:
    """Return the names of all server scenarios, or of the ones of a revision."""
    which = () if revision is None else ("--spec-version", revision)
    ended = run_node(_program(), "list", "--server", *which, timeout_s=_RUN_S)
    assert ended.returncode == 0, ended.stderr
    return frozenset(_LISTED.findall(ended.stdout))


def run_suite(url: str, folder: Path, *, bearer: str, revision: str | None = None) -> dict[str, Outcome]:
    """Run all scenarios in one process, at the newest revision of each or at a given one."""
    which = () if revision is None else ("--spec-version", revision)
    ended = run_node(
        "--import",
        str(Path(__file__).with_name("authorize.mjs")),
        *(_program(), "server", "--url", url, "--suite", "all", *which),
        *("--timeout", str(_SCENARIO_MS), "--output-dir", str(folder)),
        timeout_s=_RUN_S,
        variables={"VOX_TEST_BEARER": bearer, "VOX_TEST_UNDICI": _undici()},
    )
    assert "=== SUMMARY ===" in ended.stdout, ended.stdout + ended.stderr
    return {
        _scenario_of(each): _outcome(json.loads(each.read_text())) for each in folder.glob("*/checks.json")
    }


def judge(outcomes: Mapping[str, Outcome], left_out: Mapping[str, str]) -> list[str]:
    """Return what is not as it must be, a line each.

    `left_out` has the reason for each scenario, or `SCENARIO:CHECK`, that does not apply; it must not pass.
    """
    found = []
    for scenario, outcome in sorted(outcomes.items()):
        if scenario in left_out:
            if outcome.has_passed:
                found.append(f"{scenario} passes: it must not be left out")
            continue
        spared = {check for check in outcome.faults if f"{scenario}:{check}" in left_out}
        found += [f"{scenario}: {line}" for check, line in outcome.faults.items() if check not in spared]
        if not outcome.passed:
            found.append(f"{scenario} was skipped")
    for name in left_out:
        scenario, separator, check = name.partition(":")
        if separator and scenario in outcomes and check not in outcomes[scenario].faults:
            found.append(f"{name} passes: it must not be left out")
    return found


def _outcome(checks: Iterable[Mapping[str, Any]]) -> Outcome:
    own = [check for check in checks if check["id"] != _ABOUT_WIRE or check["status"] == "FAILURE"]
    return Outcome(
        passed=sum(check["status"] == "SUCCESS" for check in own),
        faults={check["id"]: _line(check) for check in own if check["status"] in ("FAILURE", "WARNING")},
    )


def _line(check: Mapping[str, Any]) -> str:
    return f"{check['status']} {check['id']}: {check.get('errorMessage', check['description'])}"


def _scenario_of(checks: Path) -> str:
    named = _NAMED.fullmatch(checks.parent.name)
    assert named is not None, checks
    return named["scenario"]


def _program() -> str:
    return str(packages() / "@modelcontextprotocol" / "conformance" / "dist" / "index.js")


def _undici() -> str:
    """Return the HTTP client that the suite itself loads."""
    nested = packages() / "@modelcontextprotocol" / "conformance" / "node_modules" / "undici"
    folder = nested if nested.is_dir() else packages() / "undici"
    return (folder / "index.js").as_uri()
