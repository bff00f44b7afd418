"""Builds: versions of the code that node processes run, each in a folder of its own.

- `this`: this checkout.
- `next`: a copy of it with one more migration, as the next version will have: a column, a table and an index.
  Pruning waits in it until all live nodes know that migration.
- `earlier`: the newest revision in the history of git with a lower schema version; or a revision by its name.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from tools.homes import environment
from vox_mesh import Settings

ROOT: Final = Path(__file__).resolve().parents[2]
THIS: Final = "this"
NEXT: Final = "next"
EARLIER: Final = "earlier"

_PARTS: Final = ("vox_mesh", "sql", "proof", "tools")
_MIGRATIONS: Final = "sql/migrations"
_NUMBERED: Final = re.compile(r"(?:.*/)?(\d{4})_\w+\.sql")
_FEATURES: Final = "vox_mesh/model/nodes/features.py"
_ONCE_IN: Final = "vox_mesh/runtime/retention/retention.py"
"""Where earlier revisions say since when pruning is known, if they prune."""
_PRUNING_KNOWN: Final = re.compile(r"^(PRUNING_KNOWN: Final = )(\d+)$", re.MULTILINE)
_PROTOCOL: Final = ("proof/chaos/protocol.py", "proof/chaos/workload_client.py")
_GIT_S: Final = 60.0
_PREPARE_S: Final = 60.0
_PREPARE: Final = """
import asyncio
from proof.chaos.teardown import asking, prepare
from vox_mesh import load_settings

async def main():
    async with asking(load_settings(_env_file=None)) as (store, _):
        await prepare(store)

asyncio.run(main())
"""
_ALTERED: Final = "CREATE TABLE IF NOT EXISTS a2a_messages (\n"
_NEXT_COLUMN: Final = "next_note TEXT NOT NULL DEFAULT ''"
_NEXT_OBJECTS: Final = (
    "CREATE TABLE IF NOT EXISTS next_things (\n    thing TEXT NOT NULL PRIMARY KEY,\n    job_id TEXT\n);",
    "CREATE INDEX IF NOT EXISTS next_things_by_job ON next_things (job_id);",
)


class BuildMissing(Exception):
    """There is no such build here."""


@dataclass(frozen=True, slots=True)
class Build:
    """A version of the code."""

    name: str
    root: Path
    schema_version: int
    pruning_known: int | None
    """The schema version that all live nodes must know before it prunes; `None`: it does not prune."""

    def document(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return asdict(self) | {"root": str(self.root)}

    def prepare_database(self, settings: Settings) -> None:
        """Have this build create the database, with the tables of the workloads and the witnesses."""
        variables = {**os.environ, "PYTHONPATH": str(self.root), **environment(settings)}
        command = (sys.executable, "-c", _PREPARE)
        subprocess.run(command, cwd=self.root, env=variables, check=True, timeout=_PREPARE_S)


def build_of(name: str, folder: Path) -> Build:
    """Return a build; one that is not this checkout is made in the folder. Raises `BuildMissing`."""
    if name == THIS:
        return this_build()
    root = folder.absolute() / name
    if name == NEXT:
        _copy_next(root)
    else:
        _check_out(earlier_revision() if name == EARLIER else name, root)
    return _build_in(name, root)


def this_build() -> Build:
    """Return this checkout."""
    return _build_in(THIS, ROOT)


@cache
def earlier_revision() -> str:
    """Return the newest revision with a lower schema version that is started as this one is."""
    version = _newest(path.name for path in (ROOT / _MIGRATIONS).iterdir())
    changed = _git("log", "--format=%H", "--first-parent", "--", _MIGRATIONS).split()
    for revision in changed:
        for parent in (revision, f"{revision}^"):
            if _schema_version_at(parent) < version and _is_startable(parent):
                return _git("rev-parse", parent).strip()
    raise BuildMissing("the history of git here has no revision with an earlier schema version")


def _schema_version_at(revision: str) -> int:
    try:
        return _newest(_git("ls-tree", "-r", "--name-only", revision, _MIGRATIONS).split())
    except BuildMissing:
        return 10**6  # not in this history


def _is_startable(revision: str) -> bool:
    return all(_git("show", f"{revision}:{path}") == (ROOT / path).read_text() for path in _PROTOCOL)


def _newest(names: Any) -> int:
    return max((int(found[1]) for name in names if (found := _NUMBERED.fullmatch(name))), default=10**6)


def _git(*arguments: str) -> str:
    try:
        command = ("git", "-C", str(ROOT), *arguments)
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_S).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildMissing(f"git {arguments[0]} failed: {error}") from None


def _check_out(revision: str, root: Path) -> None:
    """Write the files of a revision to a folder."""
    root.mkdir(parents=True)
    archive = root / "archive.tar"
    _git("archive", "--format=tar", f"--output={archive.absolute()}", revision, *_PARTS)
    shutil.unpack_archive(archive, root, "tar")
    archive.unlink()


def _copy_next(root: Path) -> None:
    """Write the next version to a folder."""
    for part in _PARTS:
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    number = _newest(path.name for path in (ROOT / _MIGRATIONS).iterdir()) + 1
    objects = "\n".join(_NEXT_OBJECTS)
    migration = f"ALTER TABLE a2a_messages ADD COLUMN {_NEXT_COLUMN};\n{objects}\n"
    (root / _MIGRATIONS / f"{number:04d}_next_version.sql").write_text(migration)
    tables = root / "sql" / "coordination.sql"
    _replace(tables, re.escape(_ALTERED), f"{_ALTERED}    {_NEXT_COLUMN},\n")
    tables.write_text(f"{tables.read_text()}\n{objects}\n")
    _replace(root / _FEATURES, _PRUNING_KNOWN.pattern, rf"\g<1>{number}")


def _replace(file: Path, pattern: str, new: str) -> None:
    text, count = re.subn(pattern, new, file.read_text(), flags=re.MULTILINE)
    if count != 1:
        raise BuildMissing(f"{file} matches {pattern!r} {count} times, not once")
    file.write_text(text)


def _build_in(name: str, root: Path) -> Build:
    version = _newest(path.name for path in (root / _MIGRATIONS).iterdir())
    texts = (path.read_text() for part in (_FEATURES, _ONCE_IN) if (path := root / part).exists())
    known = next((found for text in texts if (found := _PRUNING_KNOWN.search(text))), None)
    return Build(name, root, version, int(known[2]) if known else None)
