"""Attestation: a proof has the hash of the executable that ran, and no other hash is accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.jobs.job_scene import on_node
from tests.support.jobs.proofs import proof_in_log
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.jobs.proof import Proof, faults_of, hash_of
from vox_mesh.node import MeshNode


async def proof_of(node: MeshNode, *command: str) -> Proof:
    """The proof of a command that has run."""
    (job,) = await node.jobs.schedule_all([Manifest.of(command=command, timeout=30)])
    async with node.worker.running():
        done = await node.jobs.wait(job)
    return await proof_in_log(node, done)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that may be executed."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tool"
    path.write_text('#!/bin/sh\neval "$1"\n')
    path.chmod(0o755)
    return path


def test_a_proof_names_the_executable_that_ran_unless_it_was_changed_meanwhile(tool: Path) -> None:
    expected = hash_of(tool.read_bytes())

    async def work(node: MeshNode) -> None:
        ran = await proof_of(node, str(tool), "true")
        assert ran.envelope["attest_executable"] == expected
        changed = await proof_of(node, str(tool), f"touch -d @1 {tool}")
        assert changed.envelope["attest_executable"] is None

    on_node(work)


def test_a_proof_with_the_hash_of_another_executable_is_not_accepted(tool: Path) -> None:
    async def work(node: MeshNode) -> None:
        proof = await proof_of(node, str(tool), "true")
        job_id = proof.envelope["job_id"]
        assert faults_of(proof, job_id=job_id) == []
        for other in (hash_of(b"other"), None):
            forged = Proof({**proof.envelope, "attest_executable": other}, proof.signature)
            assert faults_of(forged, job_id=job_id) == [
                "the signature is not the worker's for this job and this envelope"
            ]

    on_node(work)
