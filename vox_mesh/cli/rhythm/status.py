"""`vox-mesh rhythm status`: who is in which phase and state, and who waits for whom."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Final

import click

from vox_mesh.cli.support.output import Record, json_option, show_several
from vox_mesh.cli.support.session import run_on_mesh, start_quickly, start_shared
from vox_mesh.mesh import Mesh
from vox_mesh.model.rhythm.claims import ClaimState
from vox_mesh.rhythm.task_status import MAX_LIMIT, Position
from vox_mesh.views.rhythm import StatusFilter, TaskStatusView, statuses_of

_COMMAND: Final = "rhythm status"
_MAX_LIMIT: Final = 10_000


@click.command()
@click.option("--scope", metavar="NAME", help="Scope to read.", show_default="VOX_MESH_SCOPE_ID")
@click.option("--score", metavar="NAME", help="Only tasks with this score: its address, or a kind of job.")
@click.option("--agent", metavar="NAME", help="Only tasks of this agent.")
@click.option(
    "--state", type=click.Choice([state.value for state in ClaimState]), help="Only tasks in this state."
)
@click.option(
    "--limit",
    type=click.IntRange(1, _MAX_LIMIT),
    metavar="N",
    default=MAX_LIMIT,
    show_default=True,
    help="Maximum number of tasks, by agent and task.",
)
@json_option
def status(
    scope: str | None, score: str | None, agent: str | None, state: str | None, limit: int, as_json: bool
) -> None:
    """Show who is in which phase, and who waits for whom.

    Lists the last status claim of each task in this bar and the one before. A claim is written when its beat
    ends. "waits on" names the agents that were asked for help, or have promised it.

    \b
    Example:
      vox-mesh rhythm status --state waiting
    """
    settings = start_quickly(_COMMAND) if scope is None else start_shared(_COMMAND, scope_id=scope)
    wanted = StatusFilter(agent, state, score)
    found, now_ms = asyncio.run(run_on_mesh(settings, lambda mesh: _read(mesh, wanted, limit)))
    show_several([asdict(each) if as_json else _line(each, now_ms) for each in found], as_json=as_json)


async def _read(mesh: Mesh, wanted: StatusFilter, limit: int) -> tuple[list[TaskStatusView], int]:
    found: list[TaskStatusView] = []
    after: Position | None = None
    forged = 0
    while len(found) < limit:
        page = await statuses_of(mesh, wanted, after=after, limit=min(MAX_LIMIT, limit - len(found)))
        found += page.items
        forged += page.forged
        after = page.next
        if after is None:
            break
    if after is not None and (await statuses_of(mesh, wanted, after=after, limit=1)).items:
        click.echo(f"vox-mesh: only the first {limit} tasks are listed; raise --limit to see more", err=True)
    if forged:
        click.echo(f"vox-mesh: {forged} tasks are left out: their nodes have not signed the status", err=True)
    return found, mesh.rhythm.times.now_ms


def _line(status: TaskStatusView, now_ms: int) -> Record:
    """Return a task's row of the table."""
    return {
        "agent": status.agent_id,
        "task": status.task_id,
        "phase": status.phase,
        "state": status.state,
        "since": f"{max(0, now_ms - status.since_ms) / 1_000:.0f}s ago",
        "waits for": ", ".join(status.wait_for),
        "waits on": ", ".join(status.waits_on),
        "left": status.beats_left,
        "done": None if status.progress is None else f"{status.progress:.0%}",
        "score": status.score,
        "node": status.node_id,
        "notes": status.notes,
    }
