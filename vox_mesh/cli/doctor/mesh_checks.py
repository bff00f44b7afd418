"""Checks of the mesh: its nodes, and what waits for somebody."""

from __future__ import annotations

import asyncio
from typing import Final

import httpx

from vox_mesh.cli.doctor.checks import CheckResult, DoctorCheck, Patient, fail, ok, warn
from vox_mesh.model.base.addresses import host_of, is_loopback
from vox_mesh.model.jobs.records import JobState, matches
from vox_mesh.model.nodes.liveness import NodeState
from vox_mesh.nodes.identity import machine_id
from vox_mesh.settings import Settings
from vox_mesh.views.nodes import NodeView

_ASK_S: Final = 3.0
_LONG_MS: Final = 60_000
_GONE: Final = (NodeState.DEAD, NodeState.LEFT)


async def nodes(patient: Patient) -> CheckResult:
    """Who is here, and how each of them says it is."""
    there = [node for node in patient.scene.nodes if node.state not in _GONE]
    if not there:
        return ok("none is here: `vox-mesh up` starts one")
    ill = [f"{node.node_id}: {fault}" for node in there for fault in node.faults]
    if ill:
        return fail("; ".join(ill), "see the log of that node, and docs/operations.md")
    silent = [node.node_id for node in there if node.state != NodeState.ALIVE]
    if silent:
        return warn(f"silent: {', '.join(silent)}", "is its machine up, and can it reach the database?")
    return ok(", ".join(node.node_id for node in there))


async def service(patient: Patient) -> CheckResult | None:
    """Whether the nodes of this machine answer over HTTP, and are ready.

    One that is dead by the roster is asked as well: it may be that it only can't write.
    """
    own = machine_id()
    here = [
        node
        for node in patient.scene.nodes
        if node.state != NodeState.LEFT and node.machine_id == own and node.control_addr is not None
    ]
    headers = _headers(patient.settings)
    async with httpx.AsyncClient(timeout=_ASK_S, headers=headers, trust_env=False) as client:
        answers = await asyncio.gather(*(_asked(client, node) for node in here))
    said = {node.node_id: answer for node, answer in zip(here, answers, strict=True) if answer is not None}
    if not said:
        return None
    if faults := [f"{name}: {wrong}" for name, wrong in said.items() if wrong]:
        return fail("; ".join(faults), "see the log of that node")
    return ok(", ".join(f"{node.node_id} at {node.control_addr}" for node in here if node.node_id in said))


def _headers(settings: Settings) -> dict[str, str]:
    token = settings.read_token or settings.token
    return {} if token is None else {"Authorization": f"Bearer {token.get_secret_value()}"}


async def _asked(client: httpx.AsyncClient, node: NodeView) -> str | None:
    """What is wrong with a node, by its own word; `None`: it is gone, as everybody knows."""
    try:
        answer = await client.get(f"{node.control_addr}/readyz", params={"verbose": ""})
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            return "it has another VOX_MESH_TOKEN"
        wrong = [f"{each['name']}: {each['detail']}" for each in answer.json()["checks"] if not each["ok"]]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:  # or somebody else answers there
        is_known = node.state == NodeState.DEAD
        return None if is_known else f"it does not answer at {node.control_addr} ({type(error).__name__})"
    return "; ".join(wrong)


async def reach(patient: Patient) -> CheckResult | None:
    """Whether other machines could reach a node that is started here."""
    told = patient.settings.control_addr
    if told is None or is_loopback(host_of(told)) or patient.settings.token is not None:
        return None
    return warn(
        "VOX_MESH_CONTROL_ADDR is set, but without VOX_MESH_TOKEN a node listens on this machine only",
        "set VOX_MESH_TOKEN: `vox-mesh token create --service` makes one",
    )


async def jobs(patient: Patient) -> CheckResult:
    """Jobs that nobody takes, and those that went wrong."""
    scene = patient.scene
    taken = {kind for node in scene.nodes if node.state not in _GONE for kind in node.kinds}
    left = sorted(
        kind.kind
        for kind in scene.kinds
        if (kind.oldest_ms or 0) > _LONG_MS and not kind.is_paused and not _is_taken(kind.kind, taken)
    )
    if left:
        return warn(f"nobody works on {', '.join(left)}", "start a node with handlers for it")
    failed = scene.jobs_in(JobState.FAILED)
    told = f"{scene.jobs_in(JobState.PENDING)} wait, {scene.jobs_in(JobState.RUNNING)} run"
    if failed:
        return warn(f"{told}, {failed} have failed", "see `vox-mesh job dead`")
    return ok(told)


def _is_taken(kind: str, patterns: set[str]) -> bool:
    return any(matches(each, kind) for each in patterns)


async def messages(patient: Patient) -> CheckResult:
    """Messages that nobody has dealt with."""
    mail = patient.scene.mail
    if mail.dead:
        return warn(f"{mail.dead} dead letters", "see `vox-mesh messages dead`")
    if mail.overdue:
        return warn(f"{mail.overdue} are overdue", "see `vox-mesh messages overdue`")
    return ok(f"{mail.unread} unread")


async def conflicts(patient: Patient) -> CheckResult:
    """Writes that lost a race and wait for somebody to decide."""
    count = patient.scene.open_conflicts
    if count:
        return warn(f"{count} are open", "see `vox-mesh conflicts list --open`")
    return ok("none is open")


async def tempo(patient: Patient) -> CheckResult:
    """Whether all nodes go by the tempo of the mesh."""
    found = patient.agreement
    if not found.differing:
        return ok(f"{found.tempo_bpm:g} beats a minute, {found.leader or 'nobody'} leads")
    names = ", ".join(found.differing)
    follows = "" if found.leader else "; nobody leads, so that the median is followed"
    return warn(
        f"by another policy than the mesh's: {names}{follows}",
        "give all nodes the same VOX_MESH_TEMPO_POLICY, or run `vox-mesh rhythm policy set FILE`",
    )


CHECKS: Final[tuple[DoctorCheck, ...]] = (nodes, service, reach, tempo, jobs, messages, conflicts)
