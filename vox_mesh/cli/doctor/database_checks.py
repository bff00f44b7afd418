"""Checks of the database. The first one tells whether it can be reached; the others follow only then."""

from __future__ import annotations

import statistics
import time
from typing import Final

from vox_mesh.cli.database.db_migrate import NOT_REPAIRABLE, REPAIRABLE
from vox_mesh.cli.doctor.checks import CheckResult, DoctorCheck, Patient, fail, ok, warn
from vox_mesh.cli.support.start import opened_engine
from vox_mesh.contrib.native import require_package
from vox_mesh.errors import MeshError, SyncRefused, Unauthorized
from vox_mesh.model.base.homes import Home, ReplicaChoice
from vox_mesh.model.locks.records import iso_of
from vox_mesh.nodes.clock import MAX_STEP_MS
from vox_mesh.runtime.open_store import primary_log
from vox_mesh.store.engines.file import FileEngine
from vox_mesh.store.schema import probe
from vox_mesh.store.schema.repair import RepairPlan, repair_plan
from vox_mesh.store.schema.schema import VERSION, versions_at
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Statement

_ROUNDS: Final = 5
_FAR_MS: Final = 1_000
_TOO_FAR_MS: Final = 60_000
_RECENT_MS: Final = 7 * 86_400_000
_EPOCHS: Final = named("rollback")["epochs"]


async def reachability(patient: Patient) -> CheckResult:
    """Whether the database answers, and how fast."""
    await probe.ping(patient.engine)  # connects
    took: list[float] = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        await probe.ping(patient.engine)
        took.append(time.perf_counter() - began)
    facts = await patient.engine.facts()
    return ok(f"{facts.driver}, {facts.server}, round trip {statistics.median(took) * 1_000:.2f} ms")


async def schema(patient: Patient) -> CheckResult:
    """Whether the database has the schema that this code knows, in the right shape."""
    version, oldest_code = await versions_at(patient.engine.query)
    if oldest_code > VERSION:
        return fail(f"version {version}, this code knows {VERSION}", "upgrade vox-mesh on this machine")
    if not version:
        return warn(f"none, this code creates version {VERSION}", "run `vox-mesh db init`")
    if version < VERSION:
        advice = "back up, then run `vox-mesh db migrate`; --dry-run shows what it does"
        return warn(f"version {version}, this code migrates it to {VERSION}", advice)
    if version > VERSION:
        return ok(f"version {version}, newer than that of this code, {VERSION}")
    return _judge_shape(await repair_plan(patient.engine.query))


def _judge_shape(plan: RepairPlan) -> CheckResult:
    different = [*plan.repaired, *plan.remaining]
    if not different:
        return ok(f"version {VERSION}")
    found = f"version {VERSION}, but {'; '.join(map(str, different))}"
    advice = NOT_REPAIRABLE if plan.remaining else REPAIRABLE
    return fail(found, advice)


async def rollbacks(patient: Patient) -> CheckResult | None:
    """Whether the database went back to an earlier state in the last seven days."""
    if (await versions_at(patient.engine.query))[0] < VERSION:
        return None
    mesh = (patient.settings.scope_id, patient.settings.repository_id)
    rows = await patient.engine.query(Statement(_EPOCHS, mesh))
    if not rows:
        return ok("none")
    newest = rows[0]
    by, at = newest["node_id"] or "a restore", iso_of(newest["detected_ms"])
    found = f"{len(rows)}, the last found by {by} at {at}"
    if newest["age_ms"] > _RECENT_MS:
        return ok(found)
    return warn(found, "see what was lost: `vox-mesh db lost`")


async def anonymous_access(patient: Patient) -> CheckResult | None:
    """Whether the server answers a query without a token."""
    if patient.settings.home is not Home.MESH:
        return None
    async with opened_engine(patient.settings.model_copy(update={"db_token": None})) as engine:
        try:
            await probe.ping(engine)
        except Unauthorized:
            return ok("refused")
        return warn(
            "the server has no auth: whoever reaches it may read and write everything",
            "start it with --auth-jwt-key-file",
        )


async def write_access(patient: Patient) -> CheckResult:
    """Whether the database lets us write."""
    await probe.try_to_write(patient.engine)
    return ok("granted")


async def clock(patient: Patient) -> CheckResult:
    """How far this machine's clock is from the database's, and what the nodes say of that one."""
    # The answer that took the shortest time says it best.
    _, distance = min([await _clock_distance(patient) for _ in range(_ROUNDS)])
    return judge_clock(distance, await probe.clock_report(patient.engine))


def judge_clock(distance: float, report: probe.ClockReport = probe.NO_CORRECTION) -> CheckResult:
    """Judge the clocks: this machine's is so many milliseconds ahead of the database's."""
    if report.witnesses:
        return fail(
            f"the database's clock has jumped: {report.witnesses} nodes say so and have not agreed yet",
            "check the clock of the database's machine, and that most nodes are up",
        )
    found = f"{abs(distance) / 1_000:.3f} s {'ahead of' if distance > 0 else 'behind'} the database"
    if abs(report.correction_ms) >= MAX_STEP_MS:
        return warn(
            f"{found}, whose clock was set while nodes ran: they correct it by "
            f"{report.correction_ms / 1_000:+.3f} s",
            "set the clock of the database's machine, or leave it if it is right: the correction fades",
        )
    if abs(distance) > _TOO_FAR_MS:
        return fail(found, "set the clock that is wrong, here or there: until then nothing new is written")
    if abs(distance) > _FAR_MS:
        return warn(found, "synchronise this machine's clock (NTP)")
    return ok(found)


async def _clock_distance(patient: Patient) -> tuple[float, float]:
    """How long the question took, and by how much we are ahead, in milliseconds."""
    began, asked = time.perf_counter(), time.time()
    theirs = await probe.now_ms(patient.engine)
    took = time.perf_counter() - began
    return took, (asked + took / 2) * 1_000 - theirs


async def server_flags(patient: Patient) -> CheckResult | None:
    """Whether the server checkpoints on commit, which can wedge it."""
    if patient.settings.home is not Home.MESH:
        return None
    try:
        pages = await probe.checkpoint_pages(patient.engine)
    except MeshError:
        return ok("the server does not tell")
    if pages:
        return warn(
            f"the server checkpoints on commit, every {pages} pages: many short-lived clients can wedge it",
            "start it with --checkpoint-interval-s 60",
        )
    return ok("checkpoints by interval")


async def write_ahead_log(patient: Patient) -> CheckResult | None:
    """Whether a reader keeps the write-ahead log of the file home from being emptied."""
    if not isinstance(patient.engine, FileEngine):
        return None
    status = await patient.engine.wal_status()
    told = f"{status.bytes / 2**20:.1f} MB"
    if status.is_pinned:
        return warn(
            f"{told}: a program keeps a read transaction open, and the log grows until it ends",
            "find it with `lsof` on the database file, and end it",
        )
    return ok(told)


async def replica(patient: Patient) -> CheckResult | None:
    """Which embedded replica a node here can keep."""
    settings = patient.settings
    if settings.home is not Home.MESH:
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
        if settings.db_replica is ReplicaChoice.PUSHED:
            raise
        require_package()
        return ok("native: the server does not push its log, the package libsql pulls from it")
    finally:
        await log.close()
    return ok(f"pushed: the server's log has {hello.next_frame} frames")


CHECKS: Final[tuple[DoctorCheck, ...]] = (
    reachability,
    schema,
    rollbacks,
    anonymous_access,
    write_access,
    clock,
    server_flags,
    write_ahead_log,
    replica,
)
