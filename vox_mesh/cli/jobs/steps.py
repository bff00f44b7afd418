"""`vox-mesh job steps`: the durable steps of a job."""

from __future__ import annotations

from typing import Any, Final

import click

from vox_mesh.cli.jobs.job_options import job_argument
from vox_mesh.cli.support.output import json_option, show_several
from vox_mesh.cli.support.session import run_command
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.canonical import canonical
from vox_mesh.views.job_steps import StepView, steps_of

_MAX_VALUE: Final = 60


@click.command()
@job_argument
@json_option
def steps(reference: str, as_json: bool) -> None:
    """List the durable steps of a job, with their results.

    A step that is not signed by a worker of the job is ignored, and run again.

    \b
    Example:
      vox-mesh job steps 298aaf4c
    """

    async def work(mesh: Mesh) -> list[StepView]:
        return await steps_of(mesh, await mesh.jobs.find(reference))

    found = run_command("job steps", work)
    show_several([vars(each) if as_json else _line(each) for each in found], as_json=as_json)


def _line(step: StepView) -> dict[str, Any]:
    """Return what a person reads of a step."""
    value = canonical(step.value, max_depth=None) if step.is_signed else "(not signed)"
    return {
        "step": step.place,
        "name": step.name,
        "kind": step.kind,
        "state": step.state,
        "failures": step.failures,
        "took_ms": step.ended_ms - step.began_ms,
        "value": value if len(value) <= _MAX_VALUE else f"{value[: _MAX_VALUE - 3]}...",
    }
