"""Grants: agents are admitted, granted, delegated to and revoked, while they lock, send, and work on jobs."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from proof.workload import FunctionWorkload, WorkloadContext
from proof.workloads import settling
from vox_mesh import acting_as
from vox_mesh.errors import MeshError, NotGranted
from vox_mesh.jobs.work.reports import yielded
from vox_mesh.model.base.keys import SigningKey

_AGENTS: Final = ("granted-a", "granted-b", "granted-c")
_KIND: Final = "granted.job"
"""No worker has a handler for it."""
_LINES: Final = (
    ("lock.acquire on granted:*", f"job.schedule kind {_KIND}", "message.send"),
    ("lock.acquire on granted:a*", "message.send to granted-b", f"job.take kind {_KIND}"),
    (f"job.schedule kind {_KIND}", "job.take", "job.abort"),
)
_DECIDES: Final = 0.6
_REVOKES: Final = 0.7
_DELEGATES: Final = 0.2
_MAX_IN_FORCE: Final = 12

Act = Callable[[WorkloadContext, str], Awaitable[object]]


def _key_of(agent: str) -> SigningKey:
    return SigningKey(hashlib.sha256(agent.encode()).digest())


async def run(context: WorkloadContext) -> None:
    """Let the owner decide now and then, and the agents act all the time."""
    rng, waiting = context.rng, [*_AGENTS]
    async for _ in context.rounds():
        may_decide = rng.random() < _DECIDES and await is_owner(context)
        if may_decide and waiting:
            if await _admit(context, waiting[0]):
                waiting.pop(0)
        elif may_decide:
            await _decide(context)
        elif rng.random() < _DELEGATES:
            await _delegate(context)
        else:
            await _act(context, rng.choice(_AGENTS))


async def _admit(context: WorkloadContext, agent: str) -> bool:
    """Admit one agent, with a first grant: in a storm, few owners get through with more at a time."""
    with context.recorder.operation("grant.admit", agent=agent) as record:
        await context.mesh.grants.admit(agent, _key_of(agent).public)
        await context.mesh.grants.issue(agent, context.rng.choice(_LINES), delegations=2)
        record.ok()
    return record.is_ok


async def is_owner(context: WorkloadContext) -> bool:
    """Return whether this node is the owner's."""
    mesh = context.mesh
    try:
        return await mesh.ownership.may_act(mesh.identity.chain, mesh.identity.key.public)
    except MeshError:
        return False


async def _decide(context: WorkloadContext) -> None:
    """Issue a grant, or revoke one."""
    mesh, rng = context.mesh, context.rng
    with context.recorder.operation("grant.decide") as record:
        in_force = await mesh.grants.in_force()
        if in_force and (len(in_force) >= _MAX_IN_FORCE or rng.random() < _REVOKES):
            grant = rng.choice(in_force).grant
            acting = asyncio.create_task(_act(context, grant.agent))  # which has looked its grant up already
            try:
                await mesh.grants.revoke(grant.grant_id)
                record.ok(revoked=grant.grant_id)
            finally:
                await acting
        else:
            agent = rng.choice(_AGENTS)
            grant = await mesh.grants.issue(agent, rng.choice(_LINES), delegations=rng.randrange(3))
            record.ok(issued=grant.grant_id, agent=agent)


async def _delegate(context: WorkloadContext) -> None:
    """Pass a grant on to another agent, with the key of the agent that has it."""
    mesh, rng = context.mesh, context.rng
    with context.recorder.operation("grant.delegate") as record:
        able = [each.grant for each in await mesh.grants.in_force() if each.grant.terms.delegations]
        if not able or len(able) >= _MAX_IN_FORCE:
            record.ok()
            return
        parent = rng.choice(able)
        lines = [str(rng.choice(parent.terms.capabilities))]
        agent = rng.choice([each for each in _AGENTS if each != parent.agent])
        grant = await mesh.grants.delegate(parent.grant_id, agent, lines, key=_key_of(parent.agent))
        record.ok(delegated=grant.grant_id, agent=agent)


async def _act(context: WorkloadContext, agent: str) -> None:
    """Do something in the name of an agent, which its grants allow or not."""
    what = context.rng.choice([*_ACTS])
    with context.recorder.operation("grant.act", agent=agent, act=what) as record:
        try:
            with acting_as(agent):
                await _ACTS[what](context, agent)
        except NotGranted:
            record.ok(refused=True)
        else:
            record.ok(refused=False)


async def _lock(context: WorkloadContext, agent: str) -> None:
    key = f"granted:{context.rng.choice('ab')}-{context.who}"
    lock = await context.mesh.locks.acquire(key, agent=agent, ttl=context.pace.ttl_s)
    await context.mesh.locks.release(lock)


async def _schedule(context: WorkloadContext, _: str) -> None:
    await context.mesh.jobs.schedule(_KIND, {})


async def _send(context: WorkloadContext, agent: str) -> None:
    receiver = context.rng.choice(_AGENTS)
    await context.mesh.messages.send(receiver, {}, sender=agent, ttl=context.pace.ttl_s)


async def _take(context: WorkloadContext, agent: str) -> None:
    """Take a job, and return it."""
    agent_work = context.mesh.work
    for taken in await agent_work.take(agent, [_KIND], lease=max(1.0, context.pace.ttl_s)):
        context.recorder.note("job.began", job=taken.job.job_id, token=taken.claim_token)
        await agent_work.report(taken.job, taken.claim_token, yielded("as planned", delay=0))


_ACTS: Final[Mapping[str, Act]] = {"lock": _lock, "schedule": _schedule, "send": _send, "take": _take}


async def drain(context: WorkloadContext) -> None:
    """End the jobs that the agents have scheduled."""
    await settling.abort_jobs(context, _KIND)


GRANTS: Final = FunctionWorkload("grants", run, drain)
