"""Views of proofs, and of the comparison of the jobs table with the op log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from vox_mesh.jobs.proof.verify import Verifier
from vox_mesh.jobs.rebuild import Difference, Rebuild
from vox_mesh.model.jobs.proof import trailers
from vox_mesh.model.jobs.replay import ReplayFinding
from vox_mesh.runtime.services import MeshServices
from vox_mesh.views.record_view import RecordView


@dataclass(frozen=True)
class ProofView:
    """Whether a job's proof holds, and what is wrong with it; without faults, its trailers."""

    job_id: str
    state: str
    trailers: dict[str, str] | None
    valid: bool
    faults: list[str]
    remarks: list[str]


async def verify_proof(mesh: MeshServices, reference: str) -> ProofView:
    """Verify the proof of a job."""
    job = await mesh.jobs.find(reference)
    faults, remarks, proof = await _verifier(mesh).check(job)
    proof_trailers = None if faults or proof is None else trailers(proof)
    return ProofView(job.job_id, job.state, proof_trailers, not faults, faults, remarks)


class Bundled(NamedTuple):
    """Everything needed to verify a job's proof elsewhere; with faults, there is no text."""

    job_id: str
    text: str
    faults: list[str]


async def bundle_proof(mesh: MeshServices, reference: str) -> Bundled:
    """Return the bundle of a job, if its proof is valid."""
    job = await mesh.jobs.find(reference)
    verifier = _verifier(mesh)
    faults, _, proof = await verifier.check(job)
    text = "" if faults or proof is None else await verifier.bundle(job, proof)
    return Bundled(job.job_id, text, faults)


def _verifier(mesh: MeshServices) -> Verifier:
    return Verifier(mesh.oplog, mesh.artifacts, mesh.jobs.authorship)


# --- jobs table and op log -----------------------------------------------------------------------------


@dataclass(frozen=True)
class DifferenceView(RecordView, record=Difference):
    """A value that differs between the table of jobs and the op log."""


@dataclass(frozen=True)
class FindingView(RecordView, record=ReplayFinding):
    """An accepted op that the rules do not allow."""


@dataclass(frozen=True)
class RebuildView:
    """How the roster differs from the log, and whether it was made the same."""

    differences: list[DifferenceView]
    findings: list[FindingView]
    repaired: bool


async def rebuild_roster(mesh: MeshServices, *, repair: bool = False) -> RebuildView:
    """Compare the jobs table with the op log, or with `repair` rebuild it from the log."""
    rebuild = Rebuild(mesh.store, mesh.oplog)
    differences = await (rebuild.repair() if repair else rebuild.check())
    return RebuildView(
        [DifferenceView(**each._asdict()) for each in differences],
        [FindingView(**each._asdict()) for each in rebuild.findings],
        repair,
    )
