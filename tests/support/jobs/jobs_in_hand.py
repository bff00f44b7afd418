"""Jobs in hand as tests see them: claimed, lapsed and completed at once, and what the log has of that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import orjson

from tests.support.messages.messaging import write
from vox_mesh import Mesh, Outcome
from vox_mesh.jobs.jobs import Reference
from vox_mesh.jobs.queries import json
from vox_mesh.model.jobs.records import CLAIM, COMPLETE, Job
from vox_mesh.model.oplog.chain import LogEntry

LEASE_MS: Final = 60_000
_PAGE: Final = 10_000
_THESE: Final = "WHERE scope_id = ?1 AND repository_id = ?2 AND job_id IN (SELECT value FROM json_each(?3))"


def ids(jobs: Iterable[Any]) -> list[str]:
    """Which jobs these are."""
    return [job.job_id for job in jobs]


async def found(mesh: Mesh, *references: Reference) -> list[Job]:
    """The jobs as they stand at the database."""
    return [await mesh.jobs.find(each) for each in references]


async def claim(mesh: Mesh, *references: Reference, lease_ms: int = LEASE_MS) -> Outcome:
    """Claim jobs as they stand, in one op."""
    return await claim_seen(mesh, await found(mesh, *references), lease_ms=lease_ms)


async def claim_seen(mesh: Mesh, jobs: Sequence[Job], *, lease_ms: int = LEASE_MS) -> Outcome:
    """Claim jobs as they were seen."""
    items = [{"job_id": job.job_id, "claim_token": job.claim_token + 1} for job in jobs]
    return await mesh.store.write(mesh.jobs.transitions.claim(items, lease_ms))


def moved(outcome: Outcome) -> list[str]:
    """Which jobs an op has moved."""
    answer: list[str] = orjson.loads(outcome.rows[0]["moved"])
    return answer


async def complete(mesh: Mesh, *references: Reference, state: str = "succeeded") -> None:
    """Start and end jobs that the node has claimed."""
    items = [{"job_id": job.job_id, "claim_token": job.claim_token} for job in await found(mesh, *references)]
    await mesh.store.write(mesh.jobs.transitions.start(items))
    await mesh.store.write(mesh.jobs.transitions.complete([{**item, "state": state} for item in items]))


async def lapse(mesh: Mesh, *references: Reference) -> None:
    """Have the leases of these jobs be over."""
    chosen = json(ids(await found(mesh, *references)))
    await write(mesh, f"UPDATE jobs SET lease_until_ms = 1 {_THESE} AND lease_until_ms IS NOT NULL", chosen)


async def ops(mesh: Mesh, kind: str) -> list[LogEntry]:
    """The entries of a kind in the log of all nodes, in the order of their commits."""
    await mesh.store.synced()
    return await mesh.oplog.tail(_PAGE, kind=kind)


async def accepted(mesh: Mesh, kind: str) -> list[list[str]]:
    """The jobs that each accepted op of a kind has moved."""
    return [_moved(entry) for entry in await ops(mesh, kind) if entry.accepted]


def _moved(entry: LogEntry) -> list[str]:
    if entry.result is None:
        return [item["job_id"] for item in orjson.loads(entry.payload)["jobs"]]
    answer: list[str] = orjson.loads(orjson.loads(entry.result)["moved"])
    return answer


class Claimed(NamedTuple):
    """A claim that was accepted."""

    at_ms: int
    job_ids: list[str]


async def claims(mesh: Mesh, lease_ms: int = LEASE_MS) -> list[Claimed]:
    """The claims that were accepted, when by the database's clock; all with leases of this duration."""
    entries = [entry for entry in await ops(mesh, CLAIM) if entry.accepted]
    ends = [orjson.loads(entry.result or "{}")["lease_until_ms"] for entry in entries]
    return [Claimed(end - lease_ms, _moved(entry)) for end, entry in zip(ends, entries, strict=True)]


async def most_in_hand(mesh: Mesh) -> int:
    """How many jobs were in hand at most, after any commit; none was given back or expired."""
    held: set[str] = set()
    most = 0
    await mesh.store.synced()
    for entry in await mesh.oplog.tail(_PAGE):
        if entry.accepted and entry.kind == CLAIM:
            held |= set(_moved(entry))
        elif entry.accepted and entry.kind == COMPLETE:
            held -= set(_moved(entry))
        most = max(most, len(held))
    return most
