"""Writing results: complete jobs with proofs that other processes have signed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from vox_mesh.errors import MeshError, Refused
from vox_mesh.jobs.git.received import ReceivedResult
from vox_mesh.jobs.jobs import Jobs
from vox_mesh.jobs.proof.artifacts import Artifacts
from vox_mesh.jobs.transitions import Item
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.proof import IMPORTED
from vox_mesh.model.jobs.records import DEFAULT_LEASE_MS, Job
from vox_mesh.model.locks.records import next_token
from vox_mesh.oplog.roles import Roles, Routing
from vox_mesh.store.script import Script, Statement
from vox_mesh.store.store import Store

_MAX_IN_FLIGHT: Final = 32
_REASONS: Final = {
    "held_back": "its kind is paused or at its limit here, or this node is draining",
    "routed_elsewhere": "its kind is routed to another node",
    "inference_not_recorded": "its kind is audited here, and it recorded no inference",
}


class ResultWriter:
    """Claims, starts and completes a job in one request, under the id of this process's node."""

    def __init__(self, store: Store, jobs: Jobs, artifacts: Artifacts, roles: Roles) -> None:
        self._store = store
        self._jobs = jobs
        self._artifacts = artifacts
        self._roles = roles

    async def complete(
        self, results: Mapping[str, ReceivedResult], jobs: Mapping[str, Job] | Mapping[str, Manifest]
    ) -> dict[str, str]:
        """Complete jobs, which are scheduled before if only their manifests are given.

        Return the ones that could not be completed, and why.
        """
        await self._jobs.check_clock()
        routing, reasons = await self._roles.routing(), dict[str, str]()
        ids = [*results]
        for start in range(0, len(ids), _MAX_IN_FLIGHT):
            part = ids[start : start + _MAX_IN_FLIGHT]
            found = await asyncio.gather(
                *(self._complete(results[job_id], jobs[job_id], routing) for job_id in part)
            )
            reasons |= {
                job_id: reason for job_id, reason in zip(part, found, strict=True) if reason is not None
            }
        return reasons

    async def _complete(self, result: ReceivedResult, job: Job | Manifest, routing: Routing) -> str | None:
        job_id = result.proof.envelope["job_id"]
        scripts: list[Script] = []
        if isinstance(job, Manifest):
            item = self._jobs.item(job)
            permit = await self._jobs.permitted.scheduling_permit([item])
            scripts.append(self._jobs.transitions.schedule([item], permit=permit))
            self._jobs.authorship.remember([item], scripts[0].key)
        last_token = 0 if isinstance(job, Manifest) else job.claim_token
        scripts += await self._scripts(result, last_token, routing)
        try:
            verdicts = await self._store.write_all(scripts)
        except MeshError as error:
            return error.line
        failure = next((each for each in verdicts if isinstance(each, MeshError)), None)
        return None if failure is None else await self._reason(job_id, failure)

    async def _scripts(self, result: ReceivedResult, last_token: int, routing: Routing) -> Sequence[Script]:
        job_id = result.proof.envelope["job_id"]
        token = next_token(last_token, self._jobs.clock.now_ms)
        held = {"job_id": job_id, "claim_token": token}
        transitions = self._jobs.transitions
        return (
            transitions.claim([{**held, "last_token": last_token}], DEFAULT_LEASE_MS, routing),
            transitions.start([held]),
            transitions.complete(
                [_item(result, held)],
                *await self._keep(result),
                logged=[{"proof": result.proof._asdict()}],
                can_spool=False,
            ),
        )

    async def _keep(self, result: ReceivedResult) -> list[Statement]:
        """Keep the contents of outputs, and return the statement that records them."""
        kept = [
            await self._artifacts.keep(result.bodies[each.hash], name=each.name, type=each.type)
            for each in result.outputs
        ]
        rows = self._artifacts.rows(kept)
        return [] if rows is None else [rows]

    async def _reason(self, job_id: str, failure: MeshError) -> str:
        if not isinstance(failure, Refused):
            return failure.line
        if failure.reason in _REASONS:
            return _REASONS[failure.reason]
        job = (await self._jobs.queries.standing([job_id])).get(job_id)
        if job is None:
            return failure.reason
        return "it waits for other jobs here" if job.waits else f"it is {job.state} here"


def _item(result: ReceivedResult, held: Item) -> Item:
    envelope = result.proof.envelope
    item: dict[str, Any] = {
        **held,
        "state": envelope["state"],
        "output_artifacts": envelope["outputs"],
        IMPORTED: True,
    }
    if envelope["exit"] is not None:
        item["exit_code"] = envelope["exit"]
    if envelope["error"] is not None:
        item["reason"] = envelope["error"]
    return item
