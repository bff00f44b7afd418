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

from vox_mesh.cli.doctor.checks import CheckContext, CheckResult, DoctorCheck, fail, ok, warn
from vox_mesh.cli.support.mesh_report import SECOND_MESH, SECOND_MESH_ADVICE, other_meshes
from vox_mesh.jobs.exec.policy import ExecPolicy
from vox_mesh.model.base.backends import Backend
from vox_mesh.nodes.identity import find_identity
from vox_mesh.runtime.exec_policy import ADVICE, exec_policy_of
from vox_mesh.runtime.foreign_home import foreign_home_fault
from vox_mesh.settings import EXAMPLES
from vox_mesh.settings.fields import FIELDS
from vox_mesh.settings.origins import mesh_origin, setting_origins
from vox_mesh.settings.secrets import FILE_SUFFIX, SECRET_VARIABLES
from vox_mesh.settings.trust import config_folder, env_files
from vox_mesh.store.engines.file import refuse_unless_ours
from vox_mesh.store.replica.mark import replicas_next_to
from vox_mesh.store.replica.paths import mark_of
from vox_mesh.store.schema.probe import all_spools
from vox_mesh.store.slots import slots, spools

_OTHER_VARIABLES: Final = frozenset({"VOX_DEBUG", "VOX_GUARD"})
_OF_TURSO: Final = frozenset(field.second for field in FIELDS.values() if field.second is not None)
_LOW_BYTES: Final = 2**30
_TOO_LOW_BYTES: Final = 64 * 2**20
_OTHER_USERS: Final = stat.S_IRWXG | stat.S_IRWXO


async def settings(context: CheckContext) -> CheckResult:
    """Check for variables without effect: misspelt ones, and VOX_DB_URL without VOX_MESH_ENABLED."""
    known = {*EXAMPLES, *_OTHER_VARIABLES, *(name + FILE_SUFFIX for name in SECRET_VARIABLES)}
    unknown = sorted(name for name in _given(context) if name.startswith("VOX_") and name not in known)
    if unknown:
        guesses = {name: difflib.get_close_matches(name, known, 1) for name in unknown}
        advice = "; ".join(
            f"did you mean {guess[0]} instead of {name}?" if guess else f"remove {name}"
            for name, guess in guesses.items()
        )
        return warn(f"unknown: {', '.join(unknown)}", advice)
    if context.settings.db_url is not None and not context.settings.enabled:
        return warn(
            "VOX_DB_URL has no effect: VOX_MESH_ENABLED is not set",
            "set VOX_MESH_ENABLED=1 to use the database",
        )
    return ok("all values valid, all names known")


def _given(context: CheckContext) -> set[str]:
    written = [name for file in env_files() for name in file.variables]
    return {name.upper() for name in (*context.environment, *written)}


async def home(context: CheckContext) -> CheckResult:
    """Check the chosen backend and its location."""
    match context.settings.backend:
        case Backend.MEMORY:
            return warn("memory: nothing is shared or kept", "run `vox-mesh init` to share state")
        case Backend.FILE:
            path = context.settings.file_path
            refuse_unless_ours(path)
            if not path.exists():
                return warn(f"file: no database at {path} yet", "run `vox-mesh db init`")
            return ok(f"file: {path}")
        case Backend.SERVER:
            return ok(f"mesh: {context.settings.endpoint}")


async def mesh(context: CheckContext) -> CheckResult:
    """Check which mesh is used, that you made it, and that it is the only one of the repository."""
    used = context.settings.home_dir.absolute()
    found = f"{used}, from {mesh_origin(context.settings)}"
    if (fault := foreign_home_fault(context.settings)) is not None:
        return warn(str(fault), fault.hint)
    others = other_meshes(context.settings)
    if others:
        return warn(f"{found}; {SECOND_MESH}: {', '.join(map(str, others))}", SECOND_MESH_ADVICE)
    return ok(found)


async def sources(context: CheckContext) -> CheckResult:
    """Check where the settings came from, and for variables in `.env` that are not taken from it."""
    found = "; ".join(f"{name} from {origin}" for name, origin in setting_origins(context.settings).items())
    ignored = sorted({name for file in env_files() for name in file.variables} & _OF_TURSO)
    if ignored and context.settings.backend is Backend.FILE and context.settings.db_url is None:
        return warn(
            f"{found}; {', '.join(ignored)} in .env not used: they belong to the application",
            "if the mesh should use that database, set VOX_DB_URL and VOX_DB_TOKEN",
        )
    return ok(found)


async def disk_space(context: CheckContext) -> CheckResult:
    """Check the disk space for the database, the replica and the spool."""
    free = {place: shutil.disk_usage(_existing(place)).free for place in _places(context)}
    place, least = min(free.items(), key=lambda item: item[1])
    found = f"{least / 2**30:.1f} GiB free at {place}"
    if least < _TOO_LOW_BYTES:
        return fail(found, "free some space")
    return warn(found, "free some space soon") if least < _LOW_BYTES else ok(found)


def _places(context: CheckContext) -> tuple[Path, Path]:
    return context.settings.file_path, context.settings.home_dir


def _existing(path: Path) -> Path:
    """Return the path, or its nearest existing parent."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())


async def file_permissions(context: CheckContext) -> CheckResult:
    """Check that other users of this machine can't read our files."""
    open_to_others = [
        path for path in _private(context) if path.exists() and path.stat().st_mode & _OTHER_USERS
    ]
    if not open_to_others:
        return ok("database, spool and home folder are private")
    named = " ".join(str(path) for path in open_to_others)
    return warn(f"accessible to other users: {named}", f"run `chmod go-rwx {named}`")


def _private(context: CheckContext) -> Iterator[Path]:
    database, home_dir = _places(context)
    yield home_dir
    for path in (database, *spools(home_dir)):
        yield from (Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm"))


async def spool(context: CheckContext) -> CheckResult:
    """Check for writes that wait in a spool, and for refused ones."""
    try:
        status = all_spools(context.settings.home_dir)
    except sqlite3.Error as error:
        return fail(f"spool can't be read: {error}", "move the damaged spool file away")
    if status.refused:
        return warn(
            f"{status.refused} entries refused by the database, {status.depth} pending",
            f"inspect the table `refused` in {context.settings.home_dir}/slots/*/spool-*.db",
        )
    if status.oldest_ms is not None:
        age = max(0, time.time_ns() // 1_000_000 - status.oldest_ms) // 1_000
        return warn(
            f"{status.depth} entries pending, the oldest for {age} s",
            "start a node with this VOX_MESH_HOME when the database is back, to replay them",
        )
    return ok("empty")


async def replica_mark(context: CheckContext) -> CheckResult | None:
    """Check for marks of deleted replicas: the file backend refuses a path with a mark."""
    path = context.settings.file_path
    replicas = [path, *(replica for _, replica in replicas_next_to(path))]
    left = [mark_of(each) for each in replicas if mark_of(each).exists() and not each.exists()]
    if not left:
        return ok("every mark has its replica")
    named = " ".join(map(str, left))
    return warn(f"marks of deleted replicas: {named}", f"run `rm {named}`")


async def identity(context: CheckContext) -> CheckResult | None:
    """Check that the keys of this machine's nodes are readable and private."""
    if context.settings.backend is Backend.MEMORY:
        return None
    kept = [find_identity(folder) for folder in sorted(slots(context.settings.home_dir))]
    names = sorted(each.node_id for each in kept if each is not None)
    return ok(", ".join(names) or "none yet: created when a node first starts")


async def server_key(context: CheckContext) -> CheckResult | None:
    """Check that the key which can make tokens of the database is not next to a node."""
    found = context.settings.home_dir / "sqld.pem"
    if not found.exists():
        return None
    return warn(
        f"{found} can make tokens of the database, and jobs of a node may read it",
        f"move it and its public key to {config_folder()}",
    )


async def exec_isolation(context: CheckContext) -> CheckResult | None:
    """Check that commands and agents of jobs can't read the key and the tokens of the node that runs them."""
    if not context.settings.worker_exec and context.settings.worker_agents is None:
        return None
    isolation = exec_policy_of(context.settings).isolation
    if isolation.is_isolated:
        return ok(isolation.describe())
    return warn(isolation.describe(), ADVICE)


async def exec_allow(context: CheckContext) -> CheckResult | None:
    """Check that the list of allowed commands does not allow all of them."""
    if not context.settings.worker_exec:
        return None
    allowed = ExecPolicy.parsed(context.settings.worker_exec_allow).allowed
    if allowed is None:
        return ok("any command may run")
    if anything := [str(entry) for entry in allowed if entry.allows_anything]:
        return warn(f"allows any command: {', '.join(anything)}", "replace ... by patterns of arguments")
    return ok(f"{len(allowed)} entries")


CHECKS: Final[tuple[DoctorCheck, ...]] = (
    settings,
    sources,
    mesh,
    home,
    disk_space,
    file_permissions,
    identity,
    spool,
    replica_mark,
    server_key,
    exec_isolation,
    exec_allow,
)
