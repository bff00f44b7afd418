"""`vox-mesh doctor`: check settings, database and mesh, and give advice."""

from __future__ import annotations

import asyncio
import os
from typing import Final

import click

from vox_mesh.cli.doctor import database_checks, host_checks, local_checks, mesh_checks
from vox_mesh.cli.doctor.checks import CheckContext, CheckResult, CheckState, DoctorCheck, run_checks
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.output import json_option, show_lines, show_several, table
from vox_mesh.cli.support.session import engine_session, start
from vox_mesh.errors import DatabaseUnavailable, MeshError
from vox_mesh.mesh import Mesh
from vox_mesh.settings import Settings
from vox_mesh.views.jobs import jobs_held_back
from vox_mesh.views.overview import overview
from vox_mesh.views.rhythm import agreement_of

_LOCAL_CHECKS: Final[tuple[DoctorCheck, ...]] = (*local_checks.CHECKS, *host_checks.CHECKS)
_DATABASE_CHECKS: Final[tuple[DoctorCheck, ...]] = database_checks.CHECKS
_MESH_CHECKS: Final[tuple[DoctorCheck, ...]] = mesh_checks.CHECKS
_MAX_HELD_BACK: Final = 100
_HOME: Final = local_checks.home.__name__
_SCHEMA: Final = (database_checks.schema.__name__, database_checks.unexpected_objects.__name__)


@click.command()
@json_option
def doctor(as_json: bool) -> int:
    """Check settings, database and nodes, and give advice.

    Also checks files, disk space and the clock, and looks for failed jobs, dead letters and open conflicts.

    Ends with 0 if no check fails, 1 if one does, 3 if the database is unreachable.

    \b
    Example:
      vox-mesh doctor --json
    """
    results = asyncio.run(_run_all(start("doctor")))
    records = [result.as_record() for result in results]
    if as_json:
        show_several(records, as_json=True)
    else:
        show_lines(_with_advice(results))
    if any(isinstance(result.cause, DatabaseUnavailable) for result in results):
        return ExitCode.DATABASE_AWAY
    return ExitCode.NO if any(result.state is CheckState.FAIL for result in results) else ExitCode.DONE


async def _run_all(settings: Settings) -> list[CheckResult]:
    context = CheckContext(settings, dict(os.environ))
    results = await run_checks(context, _LOCAL_CHECKS)
    if any(result.check == _HOME and result.state is not CheckState.OK for result in results):
        return results  # there is no database, and opening it would create one
    try:
        async with engine_session(settings) as engine:
            context.engine = engine
            first, *others = _DATABASE_CHECKS
            reached = await run_checks(context, (first,))
            results += reached
            if any(result.state is CheckState.FAIL for result in reached):
                return results
            results += await run_checks(context, others)
        if any(result.check in _SCHEMA and result.state is not CheckState.OK for result in results):
            return results  # opening the mesh would migrate the schema, and a check must not change anything
        async with Mesh.open_command(settings) as mesh:
            context.overview = await overview(mesh)
            context.held_back = await jobs_held_back(mesh, _MAX_HELD_BACK)
            context.agreement = await agreement_of(mesh)
            context.is_strict = (await mesh.grants.admissions()).is_strict
            await _read_addresses(context, mesh)
        results += await run_checks(context, _MESH_CHECKS)
    except MeshError as error:
        results.append(CheckResult.of(error, "database"))
    return results


async def _read_addresses(context: CheckContext, mesh: Mesh) -> None:
    announced = await mesh.nodes.addresses()
    is_genuine = mesh.messages.verifier.is_address_genuine
    context.addresses = {name: each for name, each in announced.items() if await is_genuine(each)}
    context.forged = sorted(announced.keys() - context.addresses.keys())


def _with_advice(results: list[CheckResult]) -> list[str]:
    heading, *lines = table(
        [{"state": each.state.value, "check": each.check, "found": each.found} for each in results]
    )
    shown = [heading]
    for line, result in zip(lines, results, strict=True):
        shown.append(line)
        if result.advice:
            shown.append(f"      -> {result.advice}")
    return shown
