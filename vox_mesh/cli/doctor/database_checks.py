"""Checks of the database. The others run only if the first one reaches it."""

from __future__ import annotations

import statistics
import time
from typing import Final

from vox_mesh.cli.database.db_migrate import NOT_REPAIRABLE, REPAIRABLE, advice_for
from vox_mesh.cli.doctor.checks import CheckContext, CheckResult, DoctorCheck, fail, ok, warn
from vox_mesh.cli.support.session import engine_session
from vox_mesh.contrib.native import require_package
from vox_mesh.errors import MeshError, SyncRefused, Unauthorized
from vox_mesh.model.base.backends import Backend, ReplicaChoice
from vox_mesh.model.locks.records import iso_of
from vox_mesh.nodes.clock import MAX_STEP_MS
from vox_mesh.nodes.processes import host_id
from vox_mesh.runtime.archive_target import backup_target
from vox_mesh.runtime.backups.backup_mesh import BackupMesh, BackupOwner, owner_at
from vox_mesh.runtime.backups.stored_backups import StoredBackups
from vox_mesh.runtime.open_store import primary_log
from vox_mesh.settings import Settings
from vox_mesh.store.engines.file import FileEngine
from vox_mesh.store.replica.mark import reports
from vox_mesh.store.replica.paths import SHARED
from vox_mesh.store.replica.wire import Hello
from vox_mesh.store.schema import probe
from vox_mesh.store.schema.repair import RepairPlan, repair_plan, unexpected_at
from vox_mesh.store.schema.schema import VERSION, versions_at
from vox_mesh.store.schema.statements import named
from vox_mesh.store.schema.unexpected import UnexpectedObject
from vox_mesh.store.schema.unreadable import unreadable_rows
from vox_mesh.store.script import Statement

_ROUNDS: Final = 5
_MAX_NAMED: Final = 5
_MISSED_BACKUPS: Final = 2
_FAR_MS: Final = 1_000
_TOO_FAR_MS: Final = 60_000
_RECENT_MS: Final = 7 * 86_400_000
_EPOCHS: Final = named("rollback")["epochs"]


async def reachability(context: CheckContext) -> CheckResult:
    """Check that the database answers, and measure the round trip."""
    await probe.ping(context.engine)  # connect before measuring
    took: list[float] = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        await probe.ping(context.engine)
        took.append(time.perf_counter() - began)
    facts = await context.engine.facts()
    return ok(f"{facts.driver}, {facts.server}, round trip {statistics.median(took) * 1_000:.2f} ms")


async def backups(context: CheckContext) -> CheckResult | None:
    """Check that the newest scheduled backup is not too old."""
    target = backup_target(context.settings)
    if target is None:
        return None
    listed = await StoredBackups(target, await _backup_owner(context)).listed()
    now_ms = time.time() * 1_000
    stored = [each for each in listed if each.at_ms <= now_ms + _TOO_FAR_MS]
    if not stored:
        return warn(f"none at {target} yet", "a node makes one: `vox-mesh up` with the same settings")
    age_s = max(0.0, (now_ms - stored[-1].at_ms) / 1_000)
    found = f"{len(listed)} at {target}, the newest {age_s / 3_600:.1f} h old"
    if ahead := len(listed) - len(stored):
        return warn(f"{found}; {ahead} from the future", "check who can write there")
    if age_s > _MISSED_BACKUPS * context.settings.backup_interval:
        return warn(found, "see the log of the nodes for `no backup made`")
    return ok(found)


async def _backup_owner(context: CheckContext) -> BackupOwner:
    """Return the mesh that the backups should be of: with the id of its database, if that can be read."""
    settings, engine = context.settings, context.engine
    mesh_id = (settings.scope_id, settings.repository_id)
    owner = None
    if (await versions_at(engine.query))[0] >= VERSION:
        owner = await owner_at(lambda sql, values: engine.query(Statement(sql, values)), mesh_id)
    return owner or BackupOwner(BackupMesh(*mesh_id))


async def schema(context: CheckContext) -> CheckResult:
    """Check the version and the shape of the schema."""
    version, oldest_code = await versions_at(context.engine.query)
    if oldest_code > VERSION:
        return fail(
            f"version {version}, newer than this code supports: {VERSION}", "upgrade vox-mesh on this machine"
        )
    if not version:
        return warn(f"no schema yet, this code creates version {VERSION}", "run `vox-mesh db init`")
    if version < VERSION:
        advice = "back up, then run `vox-mesh db migrate`; --dry-run shows the statements"
        return warn(f"version {version}, this code migrates it to {VERSION}", advice)
    if version > VERSION:
        return ok(f"version {version}, newer than this code's {VERSION}")
    return _judge_shape(await repair_plan(context.engine.query))


def _judge_shape(plan: RepairPlan) -> CheckResult:
    remaining = [each for each in plan.remaining if not isinstance(each, UnexpectedObject)]
    different = [*plan.repaired, *remaining]
    if not different:
        return ok(f"version {VERSION}")
    found = f"version {VERSION}, but {'; '.join(map(str, different))}"
    return fail(found, NOT_REPAIRABLE if remaining else REPAIRABLE)


async def unexpected_objects(context: CheckContext) -> CheckResult:
    """Check for triggers, indexes and columns that are not the mesh's and change what it does."""
    found = await unexpected_at(context.engine.query)
    if not found:
        return ok("none")
    return fail("; ".join(map(str, found)), advice_for(found[0]))


async def unreadable_text(context: CheckContext) -> CheckResult:
    """Check for rows with text that is not UTF-8, which only a hostile or faulty program writes."""
    found = await unreadable_rows(context.engine.query, _MAX_NAMED)
    if not found:
        return ok("none")
    more = " and perhaps more" if len(found) == _MAX_NAMED else ""
    return fail(
        f"not UTF-8: {'; '.join(map(str, found))}{more}",
        f"find out who wrote it, then delete it: {'; '.join(each.delete for each in found)}",
    )


async def rollbacks(context: CheckContext) -> CheckResult | None:
    """Check for rollbacks of the database in the last seven days."""
    if (await versions_at(context.engine.query))[0] < VERSION:
        return None
    mesh = (context.settings.scope_id, context.settings.repository_id)
    rows = await context.engine.query(Statement(_EPOCHS, mesh))
    if not rows:
        return ok("none")
    newest = rows[0]
    by, at = newest["node_id"] or "a restore", iso_of(newest["detected_ms"])
    found = f"{len(rows)}, the last detected by {by} at {at}"
    if newest["age_ms"] > _RECENT_MS:
        return ok(found)
    return warn(found, "run `vox-mesh db lost` to list the lost rows")


async def anonymous_access(context: CheckContext) -> CheckResult | None:
    """Check that the server rejects a query without a token."""
    if context.settings.backend is not Backend.SERVER:
        return None
    async with engine_session(context.settings.model_copy(update={"db_token": None})) as engine:
        try:
            await probe.ping(engine)
        except Unauthorized:
            return ok("rejected")
        return warn(
            "the server has no authentication: every client can read and write everything",
            "start it with --auth-jwt-key-file",
        )


async def write_access(context: CheckContext) -> CheckResult:
    """Check that the database accepts writes."""
    await probe.try_to_write(context.engine)
    return ok("granted")


async def clock(context: CheckContext) -> CheckResult:
    """Check the offset of this machine's clock from the database's, and whether that one was set."""
    # The fastest answer is the most accurate.
    _, distance = min([await _clock_distance(context) for _ in range(_ROUNDS)])
    return judge_clock(distance, await probe.clock_report(context.engine))


def judge_clock(distance: float, report: probe.ClockReport = probe.NO_CORRECTION) -> CheckResult:
    """Judge the clocks; `distance` is how far this machine's is ahead of the database's, in ms."""
    if report.witnesses:
        return fail(
            f"the database's clock has jumped: {report.witnesses} nodes report it and have not agreed yet",
            "check the clock of the database's machine, and that most nodes run",
        )
    found = f"{abs(distance) / 1_000:.3f} s {'ahead of' if distance > 0 else 'behind'} the database"
    if abs(report.correction_ms) >= MAX_STEP_MS:
        return warn(
            f"{found}, whose clock was set while nodes ran: nodes correct it by "
            f"{report.correction_ms / 1_000:+.3f} s",
            "set the clock of the database's machine if it is wrong; the correction fades by itself",
        )
    if abs(distance) > _TOO_FAR_MS:
        return fail(found, "set the wrong clock, here or there: until then writes are rejected")
    if abs(distance) > _FAR_MS:
        return warn(found, "synchronise this machine's clock (NTP)")
    return ok(found)


async def _clock_distance(context: CheckContext) -> tuple[float, float]:
    """Return the duration of a query in seconds, and how far our clock is ahead in milliseconds."""
    began, asked = time.perf_counter(), time.time()
    theirs = await probe.now_ms(context.engine)
    took = time.perf_counter() - began
    return took, (asked + took / 2) * 1_000 - theirs


async def server_flags(context: CheckContext) -> CheckResult | None:
    """Check that the server does not checkpoint on commit, which can wedge it."""
    if context.settings.backend is not Backend.SERVER:
        return None
    try:
        pages = await probe.checkpoint_pages(context.engine)
    except MeshError:
        return ok("unknown: the server does not report its flags")
    if pages:
        return warn(
            f"the server checkpoints on commit, every {pages} pages: many short-lived clients can wedge it",
            "start it with --checkpoint-interval-s 60",
        )
    return ok("checkpoints by interval")


async def file_access(context: CheckContext) -> CheckResult | None:
    """Check that the server does not let every token read and write its files."""
    if context.settings.backend is not Backend.SERVER:
        return None
    if await probe.has_file_access(context.engine):
        return fail(
            "every token, also one that may only read, can read and write the files of the server",
            "start the server with deploy/sqld/start.sh, which loads an extension that prevents it",
        )
    return ok("disabled")


async def write_ahead_log(context: CheckContext) -> CheckResult | None:
    """Check that no reader keeps the write-ahead log of the file backend from being checkpointed."""
    if not isinstance(context.engine, FileEngine):
        return None
    status = await context.engine.wal_status()
    size = f"{status.bytes / 2**20:.1f} MB"
    if status.is_pinned:
        return warn(
            f"{size}: a program keeps a read transaction open, and the log grows until it ends",
            "find the program with `lsof` on the database file, and stop it",
        )
    return ok(size)


async def replica(context: CheckContext) -> CheckResult | None:
    """Check which kind of replica a node on this machine can keep."""
    settings = context.settings
    if settings.backend is not Backend.SERVER:
        return None
    if settings.db_replica is ReplicaChoice.OFF:
        return warn("off: the server answers every read", "set VOX_DB_REPLICA=auto for local reads")
    if settings.db_replica is ReplicaChoice.NATIVE:
        require_package()
        return ok("native: the package libsql pulls from the server")
    log = primary_log(settings)
    try:
        hello = await log.hello(settings.db_request_timeout)
    except SyncRefused:
        if settings.db_replica in (ReplicaChoice.PUSHED, ReplicaChoice.SHARED):
            raise
        require_package()
        return ok("native: the server does not push its log, so the package libsql pulls it")
    finally:
        await log.close()
    if settings.db_replica is ReplicaChoice.SHARED and host_id() is not None:
        return ok(_describe_shared(settings, hello))
    return ok(f"pushed: the server's log has {hello.next_frame} frames")


def _describe_shared(settings: Settings, hello: Hello) -> str:
    """Return which process of this home follows the server now, and how far it is."""
    found = reports(settings.db_path, settings.endpoint, hello, settings.db_max_stale_ms)
    running = [each for each in found if each.slot == SHARED and each.follower_pid is not None]
    if not running:
        return "shared: no process of this home runs; the first one will follow the server"
    (first, *_) = running
    return f"shared: process {first.follower_pid} follows the server, {first.lag_frames} frames behind"


CHECKS: Final[tuple[DoctorCheck, ...]] = (
    reachability,
    schema,
    backups,
    unexpected_objects,
    unreadable_text,
    rollbacks,
    anonymous_access,
    write_access,
    clock,
    server_flags,
    file_access,
    write_ahead_log,
    replica,
)
