"""Who plays in the demo, and what there is to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from vox_mesh import Manifest
from vox_mesh.store.script import new_key

OWNER: Final = "planner"
VICTIM: Final = "coder"
HEIR: Final = "reviewer"

EDITOR: Final = "editor"
"""The role of those who may be asked to edit."""

CHANGELOG: Final = "file:CHANGELOG.md"
README: Final = "file:README.md"
PLAN: Final = {"memory_key": "plan"}
NOTES: Final = {"memory_key": "release-notes"}


@dataclass(frozen=True)
class Part:
    """An orchestrator: what it works on, which roles its agent has, and how long a step takes there."""

    kinds: tuple[str, ...]
    roles: tuple[str, ...]
    pace_s: float


KINDS: Final = ("fetch", "build", "test", "report", "release")
CAST: Final = {
    OWNER: Part(("fetch", "test", "report", "release"), (), 0.2),
    VICTIM: Part(KINDS, (EDITOR,), 1.0),  # a slow machine: whatever it has in hand takes a while
    HEIR: Part(KINDS, (EDITOR,), 0.2),
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
_PARTS: Final = 5
_OPTIONS: Final = {"lease": "3s", "backoff": "200ms", "max_attempts": 5}


def manifests() -> list[Manifest]:
    """Each module is fetched, built and tested; of a few tests each there is a report, and then a release."""
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
    reports = [job("report", f"part-{n + 1}", *tests[n::_PARTS]) for n in range(_PARTS)]
    job("release", "1.4", *reports)
    return jobs


def other_than(name: str, subject: str) -> str:
    """Whom an agent asks to review its work on something."""
    others = [each for each in CAST if each != name]
    return others[len(subject) % len(others)]
