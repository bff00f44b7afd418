"""What a test adds to the fleet, to act on it: each is new, so tests do not meet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from tools.fleet.fleet import CODERS, Fleet, record_conflict, report, schedule, send_message, take
from tools.fleet.node_process import NodeProcess, settings_of
from vox_mesh import JobContext, Manifest, Mesh, load_settings
from vox_mesh.store.script import Script, Statement, new_key
from vox_mesh.views.live.stuck import NO_PROGRESS_MS

_QUICK_TICK: Final = "100ms"
"""The heartbeat of a node that is to die soon."""


def new_name(word: str) -> str:
    """Return a name that nothing else has."""
    return f"{word}.{new_key()[-6:].lower()}"


class Conflicting(NamedTuple):
    """A conflict, and the row that it is about."""

    conflict_id: str
    name: str


@asynccontextmanager
async def opened(fleet: Fleet) -> AsyncIterator[Mesh]:
    """Open the mesh of the fleet as a command does."""
    async with Mesh.open_command(load_settings(**settings_of(fleet.folder, "north"))) as mesh:
        yield mesh


async def add_conflict(
    fleet: Fleet, text: str = "use the blue pool", *, name: str | None = None
) -> Conflicting:
    """Have two agents write one row."""
    name = name or new_name("notes")
    async with opened(fleet) as mesh:
        return Conflicting(await record_conflict(mesh, name, text), name)


async def row_of(fleet: Fleet, name: str) -> dict[str, Any]:
    """Return a row that had a conflict."""
    async with opened(fleet) as mesh:
        found = await mesh.occ.read("memories", {"memory_key": name})
    assert found is not None
    return found


async def add_approval(fleet: Fleet, kind: str, payload: Any = None) -> str:
    """Have an agent ask for a job that needs an approval; return the id of the approval."""
    body = {"manifests": [{"kind": kind, "payload": payload}], "new": True}
    answer = await fleet.node.ask("POST", "/v1/jobs", body, agent="deployer")
    assert answer.status_code == HTTPStatus.FORBIDDEN, answer.text
    approval: str = answer.json()["approval_id"]
    return approval


async def add_question(fleet: Fleet, text: str, choices: tuple[str, ...] = ()) -> str:
    """Have a job ask a question; return the id of the job."""
    kind = new_name("ask")
    await schedule(fleet.node, {"kind": kind})
    job, token = await take(fleet.node, kind, CODERS[2])
    question = {"text": text, "choices": [*choices]}
    await report(fleet.node, job, token, CODERS[2], "needs_input", question=question)
    return job


async def add_lock(fleet: Fleet, agent: str = CODERS[2]) -> str:
    """Have an agent hold a lock; return its key."""
    key = f"file:src/{new_key()[-6:].lower()}.py"
    await fleet.node.send("/v1/locks", {"keys": [key], "agent": agent, "ttl": "1h"})
    return key


async def add_failed_job(fleet: Fleet, kind: str, reason: str = "exit code 1") -> str:
    """Have a job fail for good; return its id."""
    await schedule(fleet.node, {"kind": kind, "max_attempts": 1})
    job, token = await take(fleet.node, kind, CODERS[2])
    await report(fleet.node, job, token, CODERS[2], "failed", reason=reason, retry=False)
    return job


@asynccontextmanager
async def stepping(
    fleet: Fleet, kind: str, handle: Callable[[JobContext], Awaitable[Any]]
) -> AsyncIterator[str]:
    """Have a node of its own do a job of durable steps; yield the id of the job."""
    settings = load_settings(**settings_of(fleet.folder, new_name("stepper")))
    async with Mesh.open(settings) as node:
        node.worker.handles(kind)(handle)
        job = await node.jobs.schedule(kind, max_attempts=1)
        async with node.worker.running():
            yield job.job_id


async def add_dead_letter(fleet: Fleet, payload: Any) -> str:
    """Have a message die; return its id."""
    receiver = f"pager-{new_key()[-6:].lower()}"
    message = await send_message(fleet.node, "monitor", receiver, payload, max_attempts=1)
    (claimed,) = await fleet.node.send(f"/v1/inbox/{receiver}/claim", {"limit": 1})
    nack = {"claim_owner": claimed["claim_owner"], "reason": "no such pager"}
    await fleet.node.send(f"/v1/messages/{message}/nack", nack)
    return message


async def add_ended_jobs(fleet: Fleet, kind: str, count: int) -> None:
    """Have this many jobs of a kind end without success: they are aborted."""
    async with opened(fleet) as mesh:
        manifests = [Manifest.of(kind=kind, payload={"n": number}) for number in range(count)]
        await mesh.jobs.abort(*await mesh.jobs.schedule_all(manifests), reason="not now")


async def add_stuck_job(fleet: Fleet, kind: str, agent: str) -> str:
    """Have an agent take a job and give no sign for so long that it counts as stuck; return the job's id."""
    await schedule(fleet.node, {"kind": kind})
    job, _ = await take(fleet.node, kind, agent)
    age = "UPDATE jobs SET started_ms = started_ms - ? WHERE job_id = ?"
    async with opened(fleet) as mesh:
        await mesh.store.write(Script(Statement(age, (2 * NO_PROGRESS_MS, job))))
    return job


async def add_broken_promise(fleet: Fleet, asker: str, helper: str) -> str:
    """Have an agent promise help and withdraw it; return the id of the thread."""
    asked = await fleet.node.send("/v1/rhythm/help", {"to": helper, "body": "Is it final?", "agent": asker})
    thread: str = asked["thread_id"]
    path = f"/v1/rhythm/help/{thread}"
    await fleet.node.send(f"{path}/promise", {"promise_beats": 4, "agent": helper})
    await fleet.node.send(f"{path}/withdraw", {"reason": "out of time", "agent": helper})
    return thread


async def add_dead_node(fleet: Fleet, name: str) -> None:
    """Have a node join and be killed."""
    node = await NodeProcess.start(fleet.folder, name, VOX_MESH_TICK=_QUICK_TICK)
    await node.kill()


async def add_dependent_jobs(fleet: Fleet, kind: str, count: int, *, width: int) -> list[str]:
    """Schedule jobs in rows, each of which waits for the one above it; return their ids, row by row."""
    jobs: list[str] = []
    async with opened(fleet) as mesh:
        for start in range(0, count, width):
            after = [[each] for each in jobs[-width:]] or [[]] * width
            row = [
                Manifest.of(kind=kind, payload=start + place, after=after[place]) for place in range(width)
            ]
            jobs += [job.job_id for job in await mesh.jobs.schedule_all(row)]
    return jobs
