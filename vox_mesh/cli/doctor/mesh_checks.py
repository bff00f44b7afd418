"""Checks of the mesh: its nodes, jobs, messages, conflicts and tempo."""

from __future__ import annotations

import asyncio
from typing import Final

import httpx

from vox_mesh.cli.doctor.checks import CheckContext, CheckResult, DoctorCheck, fail, ok, warn
from vox_mesh.model.base.addresses import host_of, is_loopback
from vox_mesh.model.jobs.records import JobState, matches
from vox_mesh.model.nodes.liveness import NodeState
from vox_mesh.nodes.identity import machine_id
from vox_mesh.settings import Settings
from vox_mesh.views.nodes import NodeView

_ASK_S: Final = 3.0
_LONG_MS: Final = 60_000
_GONE: Final = (NodeState.DEAD, NodeState.LEFT)


async def nodes(context: CheckContext) -> CheckResult:
    """Check the liveness and the health of all nodes."""
    present = [node for node in context.overview.nodes if node.state not in _GONE]
    if not present:
        return ok("none: `vox-mesh up` starts one")
    faults = [f"{node.node_id}: {fault}" for node in present for fault in node.faults]
    if faults:
        return fail("; ".join(faults), "see that node's log and docs/operations.md")
    late = [node.node_id for node in present if node.state != NodeState.ALIVE]
    if late:
        return warn(
            f"no recent heartbeat: {', '.join(late)}", "check that its machine runs and reaches the database"
        )
    return ok(", ".join(node.node_id for node in present))


async def service(context: CheckContext) -> CheckResult | None:
    """Check that this machine's nodes answer over HTTP and are ready.

    This includes a node that is dead by its heartbeat: it may only be unable to write.
    """
    own = machine_id()
    here = [
        node
        for node in context.overview.nodes
        if node.state != NodeState.LEFT and node.machine_id == own and node.control_addr is not None
    ]
    headers = _headers(context.settings)
    async with httpx.AsyncClient(timeout=_ASK_S, headers=headers, trust_env=False) as client:
        answers = await asyncio.gather(*(_ask(client, node) for node in here))
    answered = {
        node.node_id: answer for node, answer in zip(here, answers, strict=True) if answer is not None
    }
    if not answered:
        return None
    if faults := [f"{name}: {wrong}" for name, wrong in answered.items() if wrong]:
        return fail("; ".join(faults), "see that node's log")
    return ok(
        ", ".join(f"{node.node_id} at {node.control_addr}" for node in here if node.node_id in answered)
    )


def _headers(settings: Settings) -> dict[str, str]:
    token = settings.read_token or settings.token
    return {} if token is None else {"Authorization": f"Bearer {token.get_secret_value()}"}


async def _ask(client: httpx.AsyncClient, node: NodeView) -> str | None:
    """Return the faults a node reports; `None` if it is dead and known to be."""
    try:
        answer = await client.get(f"{node.control_addr}/readyz", params={"verbose": ""})
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            return "rejects our VOX_MESH_TOKEN"
        wrong = [f"{each['name']}: {each['detail']}" for each in answer.json()["checks"] if not each["ok"]]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:  # or another program answers there
        is_known = node.state == NodeState.DEAD
        return None if is_known else f"no answer at {node.control_addr} ({type(error).__name__})"
    return "; ".join(wrong)


async def reach(context: CheckContext) -> CheckResult | None:
    """Check that other machines could reach a node on this machine."""
    announced = context.settings.control_addr
    if announced is None or is_loopback(host_of(announced)) or context.settings.token is not None:
        return None
    return warn(
        "VOX_MESH_CONTROL_ADDR has no effect: without VOX_MESH_TOKEN a node listens on this machine only",
        "set VOX_MESH_TOKEN; `vox-mesh token random` makes a value",
    )


async def jobs(context: CheckContext) -> CheckResult:
    """Check for kinds without a worker, and for failed jobs."""
    overview = context.overview
    taken = {kind for node in overview.nodes if node.state not in _GONE for kind in node.kinds}
    left = sorted(
        kind.kind
        for kind in overview.kinds
        if (kind.oldest_ms or 0) > _LONG_MS and not kind.is_paused and not _is_taken(kind.kind, taken)
    )
    if left:
        return warn(f"no worker for {', '.join(left)}", "start a node with handlers for these kinds")
    failed = overview.jobs_in(JobState.FAILED)
    counts = f"{overview.jobs_in(JobState.PENDING)} pending, {overview.jobs_in(JobState.RUNNING)} running"
    if failed:
        return warn(f"{counts}, {failed} failed", "run `vox-mesh job dead` to list the failed ones")
    return ok(counts)


def _is_taken(kind: str, patterns: set[str]) -> bool:
    return any(matches(each, kind) for each in patterns)


async def messages(context: CheckContext) -> CheckResult:
    """Check for dead letters and overdue messages."""
    mail = context.overview.mail
    if mail.dead:
        return warn(f"{mail.dead} dead letters", "run `vox-mesh messages dead` to list them")
    if mail.overdue:
        return warn(f"{mail.overdue} overdue", "run `vox-mesh messages overdue` to list them")
    return ok(f"{mail.unread} unread")


async def conflicts(context: CheckContext) -> CheckResult:
    """Check for conflicts that wait for a resolution."""
    count = context.overview.open_conflicts
    if count:
        return warn(f"{count} open", "run `vox-mesh conflicts list --open` to list them")
    return ok("none open")


async def tempo(context: CheckContext) -> CheckResult:
    """Check that all nodes follow the tempo of the mesh."""
    found = context.agreement
    if not found.differing:
        return ok(f"{found.tempo_bpm:g} beats a minute, leader {found.leader or 'none'}")
    names = ", ".join(found.differing)
    follows = "" if found.leader else "; no leader, so the median is in force"
    return warn(
        f"policy differs from the mesh's: {names}{follows}",
        "give all nodes the same VOX_MESH_TEMPO_POLICY, or run `vox-mesh rhythm policy set FILE`",
    )


CHECKS: Final[tuple[DoctorCheck, ...]] = (nodes, service, reach, tempo, jobs, messages, conflicts)
