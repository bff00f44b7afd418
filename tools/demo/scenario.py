"""The orchestrators of the demo, and their jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from vox_mesh import Manifest
from vox_mesh.store.script import new_key

OWNER: Final = "planner"
VICTIM: Final = "coder"
HEIR: Final = "reviewer"

EDITOR: Final = "editor"
"""The role of agents that may be asked to edit."""

CHANGELOG: Final = "file:CHANGELOG.md"
README: Final = "file:README.md"
PLAN: Final = {"memory_key": "plan"}
NOTES: Final = {"memory_key": "release-notes"}


@dataclass(frozen=True)
class OrchestratorSpec:
    """An orchestrator: its kinds of jobs, the roles of its agent, and how long a step takes there."""

    kinds: tuple[str, ...]
    roles: tuple[str, ...]
    pace_s: float


KINDS: Final = ("fetch", "build", "test", "report", "release")
ORCHESTRATORS: Final = {
    OWNER: OrchestratorSpec(("fetch", "test", "report", "release"), (), 0.2),
    VICTIM: OrchestratorSpec(KINDS, (EDITOR,), 1.0),  # a slow machine: its jobs take a while
    HEIR: OrchestratorSpec(KINDS, (EDITOR,), 0.2),
}

ROUTES: Final = {"report": OWNER, "release": OWNER}

CORE: Final = "core"
"""The module that takes longest."""

EDIT_STEPS: Final = 16
_CORE_STEPS: Final = 24
_STEPS: Final = {"fetch": 1, "build": 3, "test": 2, "report": 1, "release": 1}
_MODULES: Final = (
    *(CORE, "api", "auth", "billing", "cache", "cli", "config", "crypto", "docs", "events", "export"),
    *("http", "index", "jobs", "mail", "parser", "search", "web"),
)
_REPORTS: Final = 5
_OPTIONS: Final = {"lease": "3s", "backoff": "200ms", "max_attempts": 5}


def manifests() -> list[Manifest]:
    """Return the jobs: each module is fetched, built and tested; groups have a report; then a release."""
    jobs: list[Manifest] = []

    def job(kind: str, name: str, *after: str, **more: Any) -> str:
        fields = {"steps": _STEPS[kind], "name": name} | more
        ulid = new_key()
        first = {"priority": 3} if name == CORE else {}
        options = {**_OPTIONS, **first} | ({"after": list(after)} if after else {})
        jobs.append(Manifest.of(kind=kind, payload=fields, ulid=ulid, **options))
        return ulid

    tests = []
    for module in _MODULES:
        fetched = job("fetch", module)
        more = {"steps": _CORE_STEPS} if module == CORE else {}
        tests.append(job("test", module, job("build", module, fetched, **more)))
    reports = [job("report", f"part-{n + 1}", *tests[n::_REPORTS]) for n in range(_REPORTS)]
    job("release", "1.4", *reports)
    return jobs


def other_than(name: str, subject: str) -> str:
    """Return the agent that reviews another's work on something."""
    others = [each for each in ORCHESTRATORS if each != name]
    return others[len(subject) % len(others)]
