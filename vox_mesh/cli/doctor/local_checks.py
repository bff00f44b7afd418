"""Checks of this machine: settings, files, disk."""

from __future__ import annotations

import difflib
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dotenv import dotenv_values

from vox_mesh.cli.doctor.checks import CheckResult, DoctorCheck, Patient, fail, ok, warn
from vox_mesh.model.base.homes import Home
from vox_mesh.nodes.identity import find_identity
from vox_mesh.settings import EXAMPLES, Settings
from vox_mesh.store.engines.file import refuse_unless_ours
from vox_mesh.store.replica.mark import mark_of
from vox_mesh.store.replica.report import replicas_next_to
from vox_mesh.store.schema.probe import all_spools
from vox_mesh.store.slots import slots, spools

_OTHER_VARIABLES: Final = frozenset({"VOX_DEBUG", "VOX_GUARD"})
_LOW_BYTES: Final = 2**30
_TOO_LOW_BYTES: Final = 64 * 2**20
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


async def settings(patient: Patient) -> CheckResult:
    """Variables that do nothing: misspelt ones, and a database without the switch that uses it."""
    known = {*EXAMPLES, *_OTHER_VARIABLES}
    unknown = sorted(name for name in _given(patient) if name.startswith("VOX_") and name not in known)
    if unknown:
        guesses = {name: difflib.get_close_matches(name, known, 1) for name in unknown}
        advice = "; ".join(
            f"did you mean {guess[0]} instead of {name}?" if guess else f"remove {name}"
            for name, guess in guesses.items()
        )
        return warn(f"not known: {', '.join(unknown)}", advice)
    if patient.settings.db_url is not None and not patient.settings.enabled:
        return warn(
            "VOX_DB_URL is set, but not used: VOX_MESH_ENABLED is not",
            "set VOX_MESH_ENABLED=1 to use the database",
        )
    return ok("all values are good and all names known")


def _given(patient: Patient) -> set[str]:
    env_file = Settings.model_config.get("env_file")
    written = dotenv_values(env_file) if isinstance(env_file, str) else {}
    return {name.upper() for name in (*patient.environment, *written)}


async def home(patient: Patient) -> CheckResult:
    """Which home is chosen, and whether its place may be used."""
    match patient.settings.home:
        case Home.MEMORY:
            return warn(
                "memory: nothing is shared and nothing is kept", "set VOX_MESH_ENABLED=1 to share state"
            )
        case Home.FILE:
            path = patient.settings.file_path
            refuse_unless_ours(path)
            if not path.exists():
                return warn(f"file: there is no database at {path} yet", "run `vox-mesh db init`")
            return ok(f"file: {path}")
        case Home.MESH:
            return ok(f"mesh: {patient.settings.endpoint}")


async def disk_space(patient: Patient) -> CheckResult:
    """Room for the database, the replica and the spool."""
    free = {place: shutil.disk_usage(_existing(place)).free for place in _places(patient)}
    place, least = min(free.items(), key=lambda item: item[1])
    found = f"{least / 2**30:.1f} GiB free at {place}"
    if least < _TOO_LOW_BYTES:
        return fail(found, "free some space")
    return warn(found, "free some space soon") if least < _LOW_BYTES else ok(found)


def _places(patient: Patient) -> tuple[Path, Path]:
    return patient.settings.file_path, patient.settings.home_dir


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())


async def file_permissions(patient: Patient) -> CheckResult:
    """Whether other users of this machine can read what is ours."""
    open_to_others = [path for path in _private(patient) if path.exists() and path.stat().st_mode & _OTHERS]
    if not open_to_others:
        return ok("database, spool and home folder are their owner's alone")
    named = " ".join(str(path) for path in open_to_others)
    return warn(f"open to other users: {named}", f"chmod go-rwx {named}")


def _private(patient: Patient) -> Iterator[Path]:
    database, home_dir = _places(patient)
    yield home_dir
    for path in (database, *spools(home_dir)):
        yield from (Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm"))


async def spool(patient: Patient) -> CheckResult:
    """Writes that wait for the database, and those it refused."""
    try:
        status = all_spools(patient.settings.home_dir)
    except sqlite3.Error as error:
        return fail(f"a spool can't be read: {error}", "move the damaged spool file away")
    if status.refused:
        return warn(
            f"{status.refused} entries were refused by the database, {status.depth} wait",
            f"look at the table `refused` in {patient.settings.home_dir}/slots/*/spool-*.db",
        )
    if status.oldest_ms is not None:
        age = max(0, time.time_ns() // 1_000_000 - status.oldest_ms) // 1_000
        return warn(
            f"{status.depth} entries wait, the oldest for {age} s",
            "start a node with this VOX_MESH_HOME when the database is back: it replays them",
        )
    return ok("empty")


async def replica_mark(patient: Patient) -> CheckResult | None:
    """Marks of replicas that are gone; the file home refuses a path with one."""
    path = patient.settings.file_path
    replicas = [path, *(replica for _, replica in replicas_next_to(path))]
    left = [mark_of(each) for each in replicas if mark_of(each).exists() and not each.exists()]
    if not left:
        return ok("no mark without its replica")
    named = " ".join(map(str, left))
    return warn(f"marks of replicas that are gone: {named}", f"rm {named}")


async def identity(patient: Patient) -> CheckResult | None:
    """Whether the keys of the nodes here are there, and this user's alone."""
    if patient.settings.home is Home.MEMORY:
        return None
    kept = [find_identity(folder) for folder in sorted(slots(patient.settings.home_dir))]
    names = sorted(each.node_id for each in kept if each is not None)
    return ok(", ".join(names) or "there is none yet: it is made on the first start")


CHECKS: Final[tuple[DoctorCheck, ...]] = (
    settings,
    home,
    disk_space,
    file_permissions,
    identity,
    spool,
    replica_mark,
)
