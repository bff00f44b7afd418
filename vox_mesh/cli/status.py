"""`vox-mesh status`: the mesh on one screen."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final

import click

from vox_mesh.cli.doctor import local_checks
from vox_mesh.cli.doctor.checks import CheckContext, CheckState, run_checks
from vox_mesh.cli.jobs.missing_worker import kinds_without_worker, starting_command
from vox_mesh.cli.support.all_scopes import all_scopes_option, show_all_scopes
from vox_mesh.cli.support.exit_codes import ExitCode
from vox_mesh.cli.support.output import fields, json_option, show_lines, show_one
from vox_mesh.cli.support.session import run_on_mesh, start
from vox_mesh.errors import MeshError
from vox_mesh.mesh import Mesh
from vox_mesh.model.base.backends import Backend
from vox_mesh.model.jobs.records import EXEC, JobState
from vox_mesh.model.nodes.liveness import NodeState
from vox_mesh.settings import Settings
from vox_mesh.settings.origins import mesh_origin
from vox_mesh.views.nodes import mixed_versions, version_text, versions_of
from vox_mesh.views.overview import Overview, overview

_MAX_NAMES: Final = 5
_MAX_PROBLEMS: Final = 8
_GONE: Final = (NodeState.DEAD, NodeState.LEFT)

Problem = dict[str, str]
"""What is wrong, and what to do about it."""


@click.command()
@all_scopes_option
@json_option
def status(all_scopes: bool, as_json: bool) -> int:
    """Show the mesh, its nodes, agents, work and problems.

    `vox-mesh doctor` checks more, `vox-mesh top` shows more. Ends with 1 if there is no mesh here, and with 3
    if its database can't be reached.

    \b
    Example:
      vox-mesh status
      vox-mesh status --all-scopes
    """
    if all_scopes:
        return show_all_scopes("status", overview, lambda seen: [_row(seen)], as_json=as_json)
    settings = start("status")
    record: dict[str, Any] = {
        "mesh": str(settings.home_dir.absolute()),
        "mesh_from": mesh_origin(settings),
        "backend": settings.backend.value,
    }
    problems = asyncio.run(_local_problems(settings))
    fault: MeshError | None = None
    if settings.backend is not Backend.MEMORY:
        try:
            seen, is_strict = asyncio.run(run_on_mesh(settings, _look))
        except MeshError as error:
            fault = error
        else:
            record |= {"mode": "strict" if is_strict else "trusting"} | _work(seen, settings.agent_id)
            problems += _problems(seen)
    if as_json:
        show_one({**record, "problems": problems}, as_json=True)
    else:
        show_lines(_lines(record, problems))
    if fault is not None:
        raise fault
    return ExitCode.NO if settings.backend is Backend.MEMORY else ExitCode.DONE


async def _look(mesh: Mesh) -> tuple[Overview, bool]:
    """Return the state of the mesh, and whether it is strict."""
    return await overview(mesh), (await mesh.grants.admissions()).is_strict


async def _local_problems(settings: Settings) -> list[Problem]:
    results = await run_checks(CheckContext(settings, dict(os.environ)), local_checks.CHECKS)
    return [_problem(each.found, each.advice) for each in results if each.state is not CheckState.OK]


def _problem(found: str, advice: str) -> Problem:
    return {"found": found, "advice": advice}


def _work(seen: Overview, agent: str | None) -> dict[str, Any]:
    """Return the numbers and names of what is under way."""
    mail = [each for each in seen.messages if each.standing in ("unread", "overdue")]
    return {
        "nodes": [node.node_id for node in seen.nodes if node.state not in _GONE],
        "versions": [vars(each) for each in versions_of(seen.nodes)],
        "agents": [{"agent_id": each.agent_id, "state": each.state} for each in seen.agents],
        "locks": {
            "held": len(seen.locks),
            "waiting": len(seen.waiters) + sum(len(lock.waiters) for lock in seen.locks),
        },
        "jobs": {state.value: seen.jobs_in(state) for state in JobState},
        "inbox": {
            "agent": agent,
            "unread": sum(each.receiver_agent == agent for each in mail),
            "unread_of_all": seen.mail.unread + seen.mail.overdue,
        },
    }


def _row(seen: Overview) -> dict[str, Any]:
    """Return the state of one scope of several as a row."""
    work = _work(seen, None)
    return {
        "nodes": len(work["nodes"]),
        "agents": len(work["agents"]),
        "locks": work["locks"]["held"],
        **{
            f"jobs {state.value}": work["jobs"][state.value] for state in (JobState.PENDING, JobState.RUNNING)
        },
        "unread": work["inbox"]["unread_of_all"],
        "problems": len(_problems(seen)),
    }


def _problems(seen: Overview) -> list[Problem]:
    dead = [node.node_id for node in seen.nodes if node.state == NodeState.DEAD]
    pending = {kind.kind: kind.jobs[JobState.PENDING] for kind in seen.kinds if JobState.PENDING in kind.jobs}
    announced = [node.kinds for node in seen.nodes if node.state not in _GONE]
    commands = pending.pop(EXEC, 0)
    mixed = mixed_versions(versions_of(seen.nodes))
    found = (
        (mixed is not None, mixed or "", "upgrade all nodes to the newest version"),
        (bool(dead), f"dead nodes: {_names(dead)}", "are they stopped, or cut off? `vox-mesh nodes --all`"),
        (
            bool(commands and kinds_without_worker([EXEC], announced)),
            f"{commands} pending exec jobs and no worker to run them",
            f"start one: {starting_command(EXEC)}",
        ),
        (
            bool(pending and not seen.live),
            f"{sum(pending.values())} pending jobs and no node to run them",
            f"start one: {starting_command(next(iter(pending), ''))}",
        ),
        (
            bool(count := seen.jobs_in(JobState.FAILED)),
            f"{count} failed jobs",
            "see `vox-mesh job list --state failed`",
        ),
        (
            bool(seen.mail.dead),
            f"{seen.mail.dead} dead letters",
            "see `vox-mesh messages dead`",
        ),
        (
            bool(seen.open_conflicts),
            f"{seen.open_conflicts} open conflicts",
            "see `vox-mesh conflicts list --open`",
        ),
        (
            bool(seen.open_approvals),
            f"{seen.open_approvals} approvals wait for a decision",
            "see `vox-mesh approvals list`",
        ),
    )
    return [_problem(what, advice) for is_wrong, what, advice in found if is_wrong]


def _lines(record: dict[str, Any], problems: list[Problem]) -> list[str]:
    shown: dict[str, str] = {
        "mesh": f"{record['mesh']}, from {record['mesh_from']}, backend {record['backend']}"
    }
    if "nodes" in record:
        inbox, jobs, locks = record["inbox"], record["jobs"], record["locks"]
        mine = "" if inbox["agent"] is None else f", {inbox['unread']} for {inbox['agent']}"
        shown |= {
            "mode": record["mode"],
            "nodes": _counted(record["nodes"]),
            "versions": ", ".join(
                version_text(each["version"], each["schema_version"]) for each in record["versions"]
            )
            or "none",
            "agents": _counted([f"{each['agent_id']} ({each['state']})" for each in record["agents"]]),
            "locks": f"{locks['held']} held, {locks['waiting']} waiting",
            "jobs": ", ".join(f"{count} {name}" for name, count in jobs.items() if count) or "none",
            "inbox": f"{inbox['unread_of_all']} unread{mine}",
        }
    shown["problems"] = str(len(problems)) if problems else "none"
    lines = fields(shown)
    for each in problems[:_MAX_PROBLEMS]:
        lines += [f"  {each['found']}", f"    -> {each['advice']}"]
    if len(problems) > _MAX_PROBLEMS:
        lines.append(f"  and {len(problems) - _MAX_PROBLEMS} more: run `vox-mesh doctor`")
    return lines


def _counted(names: list[str]) -> str:
    return f"{len(names)}: {_names(names)}" if names else "none"


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(names[:_MAX_NAMES])}{more}"
