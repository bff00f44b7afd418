"""`vox-mesh doctor`: is everything as it should be, and if not, what to do."""

from __future__ import annotations

import asyncio
import os
from typing import Final

import click

from vox_mesh.cli.doctor import database_checks, local_checks, mesh_checks
from vox_mesh.cli.doctor.checks import CheckResult, CheckState, DoctorCheck, Patient, examine
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.output import json_option, show_lines, show_several, table
from vox_mesh.cli.support.start import opened_engine, start
from vox_mesh.errors import DatabaseUnavailable, MeshError
from vox_mesh.mesh import Mesh
from vox_mesh.settings import Settings
from vox_mesh.views.overview import overview
from vox_mesh.views.rhythm import agreement_of

_HERE: Final[tuple[DoctorCheck, ...]] = local_checks.CHECKS
_AT_THE_DATABASE: Final[tuple[DoctorCheck, ...]] = database_checks.CHECKS
_OF_THE_MESH: Final[tuple[DoctorCheck, ...]] = mesh_checks.CHECKS
_HOME: Final = local_checks.home.__name__
_SCHEMA: Final = database_checks.schema.__name__


@click.command()
@json_option
def doctor(as_json: bool) -> int:
    """Check that all is well, and say what to do.

    Looks at the settings, files, disk, database, clock and nodes, and at what waits for somebody.

    Ends with 0 if nothing fails, 1 if something does, 3 if the database is unreachable.

    \b
    Example:
      vox-mesh doctor --json
    """
    findings = asyncio.run(_examine(start()))
    records = [finding.as_record() for finding in findings]
    if as_json:
        show_several(records, as_json=True)
    else:
        show_lines(_with_advice(findings))
    if any(isinstance(finding.cause, DatabaseUnavailable) for finding in findings):
        return ExitCode.DATABASE_AWAY
    return ExitCode.NO if any(finding.state is CheckState.FAIL for finding in findings) else ExitCode.DONE


async def _examine(settings: Settings) -> list[CheckResult]:
    patient = Patient(settings, dict(os.environ))
    findings = await examine(patient, _HERE)
    if any(finding.check == _HOME and finding.state is not CheckState.OK for finding in findings):
        return findings  # there is no database, and looking for it would create one
    try:
        async with opened_engine(settings) as engine:
            patient.engine = engine
            first, *others = _AT_THE_DATABASE
            reached = await examine(patient, (first,))
            findings += reached
            if any(finding.state is CheckState.FAIL for finding in reached):
                return findings
            findings += await examine(patient, others)
        if any(finding.check == _SCHEMA and finding.state is not CheckState.OK for finding in findings):
            return findings  # to open the mesh would migrate it, and to look is not to change
        async with Mesh.open_command(settings) as mesh:
            patient.scene = await overview(mesh)
            patient.agreement = await agreement_of(mesh)
        findings += await examine(patient, _OF_THE_MESH)
    except MeshError as error:
        findings.append(CheckResult.of(error, "database"))
    return findings


def _with_advice(findings: list[CheckResult]) -> list[str]:
    heading, *lines = table(
        [{"state": each.state.value, "check": each.check, "found": each.found} for each in findings]
    )
    told = [heading]
    for line, finding in zip(lines, findings, strict=True):
        told.append(line)
        if finding.advice:
            told.append(f"      -> {finding.advice}")
    return told
