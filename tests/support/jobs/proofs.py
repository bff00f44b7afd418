"""Proofs of jobs, as the log has them."""

from __future__ import annotations

from vox_mesh.jobs.git.worker_keys import WorkerKeys
from vox_mesh.model.jobs.proof import Proof
from vox_mesh.model.jobs.records import Job
from vox_mesh.node import MeshNode


async def proof_in_log(node: MeshNode, job: Job) -> Proof:
    """The proof in the op that completed a job."""
    keys = WorkerKeys(node.trusted_keys, node.nodes)
    return Proof(**(await node.jobs.queries.completions([job], keys.key_at))[job.job_id]["proof"])
