"""Checks of the mesh: its nodes, jobs, messages, conflicts and tempo."""

from __future__ import annotations

import asyncio
import stat
from typing import Final

import httpx

from vox_mesh.cli.doctor.checks import CheckContext, CheckResult, DoctorCheck, fail, ok, warn
from vox_mesh.client.connection import UNIX, transport_of
from vox_mesh.errors import NotStrict
from vox_mesh.model.base.addresses import host_of, is_loopback
from vox_mesh.model.jobs.records import JobState, matches
from vox_mesh.model.nodes.liveness import NodeState
from vox_mesh.nodes.home_token import find_token
from vox_mesh.nodes.identity import machine_id
from vox_mesh.nodes.node_sockets import FILE as SOCKET
from vox_mesh.settings import Settings
from vox_mesh.store.slots import slot_folder
from vox_mesh.views.nodes import NodeView, mixed_versions, versions_of

_ASK_S: Final = 3.0
_LONG_MS: Final = 60_000
_GONE: Final = (NodeState.DEAD, NodeState.LEFT)
_NO_ANSWER: Final = (httpx.HTTPError, ValueError, KeyError, TypeError)
"""What is raised if nothing answers, or another program."""


async def nodes(context: CheckContext) -> CheckResult:
    """Check the liveness and the health of all nodes."""
    present = [node for node in context.overview.nodes if node.state not in _GONE]
    if not present:
        return ok("none: `vox-mesh up` starts one")
    faults = [f"{node.node_id}: {fault}" for node in present for fault in node.faults]
    if faults:
        return fail("; ".join(faults), "see that node's log and docs/guides/operations.md")
    late = [node.node_id for node in present if node.state != NodeState.ALIVE]
    if late:
        return warn(
            f"no recent heartbeat: {', '.join(late)}", "check that its machine runs and reaches the database"
        )
    return ok(", ".join(node.node_id for node in present))


async def versions(context: CheckContext) -> CheckResult | None:
    """Check that all nodes run the same version, and name what waits until they do."""
    found = versions_of(context.overview.nodes)
    if mixed := mixed_versions(found):
        return warn(mixed, "upgrade all nodes to the newest version")
    return ok(str(found[0])) if found else None


async def mode(context: CheckContext) -> CheckResult:
    """Check that the mesh is as strict as the settings require, and that all nodes are admitted to it."""
    if not context.is_strict:
        if context.settings.strict:
            return CheckResult.of(NotStrict())
        return ok("trusting: agents that are not admitted may do everything")
    others = [
        node.node_id for node in context.overview.nodes if node.state not in _GONE and not node.admitted
    ]
    if others:
        return warn(f"strict, and not admitted: {', '.join(others)}", "run `vox-mesh nodes admit NODE`")
    return ok("strict: nothing for agents without a grant, no node that is not admitted")


async def service(context: CheckContext) -> CheckResult | None:
    """Check that this machine's nodes answer over HTTP and are ready.

    This includes a node that is dead by its heartbeat: it may only be unable to write. A node with this home
    is asked over its local socket. Others get our token only at an address that they have signed.
    """
    own = machine_id()
    here = [
        node
        for node in context.overview.nodes
        if node.state != NodeState.LEFT and node.machine_id == own and node.node_id in context.addresses
    ]
    answers = await asyncio.gather(*(_ask(context, node) for node in here))
    answered = {
        node.node_id: answer for node, answer in zip(here, answers, strict=True) if answer is not None
    }
    if not answered:
        return None
    if faults := [f"{name}: {wrong}" for name, wrong in answered.items() if wrong]:
        return fail("; ".join(faults), "see that node's log")
    return ok(
        ", ".join(
            f"{node.node_id} at {context.addresses[node.node_id].address.url}"
            for node in here
            if node.node_id in answered
        )
    )


async def _ask(context: CheckContext, node: NodeView) -> str | None:
    """Return the faults a node reports; `None` if it is dead and known to be."""
    home, url = context.settings.home_dir, context.addresses[node.node_id].address.url
    local = slot_folder(home, node.node_id).absolute() / SOCKET
    try:
        if stat.S_ISSOCK(local.lstat().st_mode):
            return await _faults_at(f"{UNIX}{local}", {})
    except (OSError, *_NO_ANSWER):
        pass  # there is none, or it is of a process that has ended
    try:
        return await _faults_at(url, _headers(context.settings))
    except _NO_ANSWER as error:
        return None if node.state == NodeState.DEAD else f"no answer at {url} ({type(error).__name__})"


async def _faults_at(address: str, headers: dict[str, str]) -> str:
    transport, base = transport_of(address)
    async with httpx.AsyncClient(
        base_url=base, timeout=_ASK_S, headers=headers, trust_env=False, transport=transport
    ) as client:
        answer = await client.get("/readyz", params={"verbose": ""})
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        return "rejects our VOX_MESH_TOKEN"
    return "; ".join(
        f"{each['name']}: {each['detail']}" for each in answer.json()["checks"] if not each["ok"]
    )


def _headers(settings: Settings) -> dict[str, str]:
    tokens = (settings.metrics_token, settings.read_token, settings.token)
    given = next((each.get_secret_value() for each in tokens if each is not None), None)
    token = given or find_token(settings.home_dir)
    return {} if token is None else {"Authorization": f"Bearer {token}"}


async def reach(context: CheckContext) -> CheckResult | None:
    """Check that other machines could reach a node on this machine."""
    announced = context.settings.control_addr
    if announced is None or is_loopback(host_of(announced)) or context.settings.token is not None:
        return None
    return fail(
        "a node does not start: VOX_MESH_CONTROL_ADDR is for other machines, which needs VOX_MESH_TOKEN",
        "set VOX_MESH_TOKEN; `vox-mesh token random` makes a value",
    )


async def relay(context: CheckContext) -> CheckResult | None:
    """Check that nodes can relay messages to each other: they share a token, and signed their addresses."""
    present = {node.node_id for node in context.overview.nodes if node.state not in _GONE}
    if forged := [name for name in context.forged if name in present]:
        return fail(
            f"address not signed by its node: {', '.join(forged)}",
            "check who can write to the database; the node repairs it with its next heartbeat",
        )
    by_token: dict[str, list[str]] = {}
    for name in sorted(present & context.addresses.keys()):
        by_token.setdefault(context.addresses[name].address.token_id, []).append(name)
    if not by_token:
        return None
    if len(by_token) > 1:
        groups = "; ".join(", ".join(names) for names in by_token.values())
        return warn(
            f"no shared token, so messages between these are polled for: {groups}",
            "set VOX_MESH_TOKEN to the same value on all nodes; `vox-mesh token random` makes one",
        )
    return ok("all nodes share a token")


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
    if context.held_back:
        job_id, reason = next(iter(context.held_back.items()))
        return warn(
            f"{len(context.held_back)} held back, such as {job_id[:12]}: {reason}",
            "add their policy root to VOX_WORKER_POLICY_ROOTS of a worker, or abort them",
        )
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
    if found.incident is not None:
        why = f" ({found.incident.reason})" if found.incident.reason else ""
        return warn(
            f"frozen by an incident since {found.incident.declared_at}{why}",
            "when it is over, run `vox-mesh rhythm incident clear`",
        )
    if not found.differing:
        return ok(f"{found.tempo_bpm:g} beats a minute, leader {found.leader or 'none'}")
    names = ", ".join(found.differing)
    follows = "" if found.leader else "; no leader, so the median is in force"
    return warn(
        f"policy differs from the mesh's: {names}{follows}",
        "give all nodes the same VOX_MESH_TEMPO_POLICY, or run `vox-mesh rhythm policy set FILE`",
    )


CHECKS: Final[tuple[DoctorCheck, ...]] = (
    nodes,
    versions,
    mode,
    service,
    reach,
    relay,
    tempo,
    jobs,
    messages,
    conflicts,
)
