"""Brief proofs: nothing of a proof is lost, and nothing of it can be changed, though it is not repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson
import pytest

from tests.nodes.test_features import another
from tests.support.jobs.jobs_in_hand import ops
from tests.support.jobs.proofs import proof_in_log
from tests.support.oplog.chains import key_named
from vox_mesh import JobContext, Statement
from vox_mesh.jobs.proof.brief_proof import Completer, brief_proof, common_part, with_whole_proof
from vox_mesh.model.base.canonical import canonical
from vox_mesh.model.jobs.proof import (
    AgentAttestation,
    CommandAttestation,
    Envelope,
    Output,
    Runner,
    faults_of,
    hash_of,
    prove,
)
from vox_mesh.model.jobs.records import COMPLETE, Job
from vox_mesh.model.nodes.features import BRIEF_PROOFS
from vox_mesh.model.rhythm.tempo import BeatStamp, window_id
from vox_mesh.node import MeshNode
from vox_mesh.store.schema.statements import named
from vox_mesh.store.script import Script
from vox_mesh.views.jobs import verify_proof

_KEY: Final = key_named("worker")
_RUNNER: Final = Runner("vox-mesh", "0.1.0", "linux-x86_64")
_PROGRAM: Final = hash_of(b"the runner")
_JOB: Final = "5e" * 32
_PLAIN: Final = Envelope(
    job_id=_JOB,
    runner=_RUNNER,
    worker_id=_KEY.public,
    node_id="worker-1",
    attempt=2,
    started_ms=1_800_000_000_000,
    finished_ms=1_800_000_000_250,
    state="succeeded",
    attest_program=_PROGRAM,
)
_OUTPUT: Final = Output("result", hash_of(b"1"), 1, "application/json")
_ENVELOPES: Final = {
    "plain": _PLAIN,
    "outputs": _PLAIN._replace(outputs=(_OUTPUT,)),
    "failed": _PLAIN._replace(state="failed", error="it\0 broke"),
    "exit": _PLAIN._replace(exit=3, command=CommandAttestation(hash_of(b"environment"))),
    "agent": _PLAIN._replace(agent=AgentAttestation("ada", "grant-1")),
    "stamp": _PLAIN._replace(stamp=BeatStamp(window_id("mesh", 1_800_000_000_000), 3)),
    "clock set back": _PLAIN._replace(finished_ms=1_700_000_000_000),
}
_COMPLETER: Final = Completer("worker-1", _KEY.public, common_part(_RUNNER, _PROGRAM))


def item_of(envelope: Envelope) -> dict[str, Any]:
    """The item of a job in the op that completes it, as the log has it."""
    proof = prove(envelope, _KEY)
    item = {
        "job_id": envelope.job_id,
        "claim_token": envelope.attempt,
        "state": envelope.state,
        "output_artifacts": proof.envelope["outputs"],
        "proof": brief_proof(envelope, proof),
    }
    more = {"reason": proof.envelope["error"], "exit_code": envelope.exit}
    item |= {name: value for name, value in more.items() if value is not None}
    read: dict[str, Any] = orjson.loads(canonical(item))
    return read


@pytest.mark.parametrize("name", _ENVELOPES)
def test_the_whole_proof_is_read_from_a_brief_one(name: str) -> None:
    envelope = _ENVELOPES[name]
    whole = with_whole_proof(item_of(envelope), _COMPLETER)["proof"]
    proof = prove(envelope, _KEY)
    assert whole == proof._asdict()
    assert len(canonical(item_of(envelope)["proof"])) < len(canonical(whole)) - 400


def _without(name: str) -> Callable[[dict[str, Any]], object]:
    return lambda proof: proof.pop(name)


@pytest.mark.parametrize(
    "change",
    [
        *map(_without, ("signature", "started_ms", "finished_ms")),
        lambda proof: proof.update(signature=proof["signature"][:-1]),
        lambda proof: proof.update(signature="é" * 86),
        lambda proof: proof.update(signature=None),
        lambda proof: proof.update(started_ms="1"),
        lambda proof: proof.update(finished_ms=-1),
        lambda proof: proof.update(another=1),
    ],
)
def test_what_is_no_brief_proof_stays_as_it_is(change: Callable[[dict[str, Any]], object]) -> None:
    item = item_of(_PLAIN)
    change(item["proof"])
    assert with_whole_proof(item, _COMPLETER) == item
    others: list[Any] = [None, [], 1, "x"]
    for given in others:
        assert with_whole_proof({"proof": given}, _COMPLETER) == {"proof": given}
    for worker in others:
        assert with_whole_proof(item, _COMPLETER._replace(worker=worker)) == item
    assert with_whole_proof({"job_id": _JOB}, _COMPLETER) == {"job_id": _JOB}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("item", "claim_token"), 3),
        (("item", "state"), "failed"),
        (("item", "output_artifacts"), []),
        (("item", "exit_code"), 1),
        (("item", "reason"), "another"),
        (("proof", "started_ms"), 1_799_999_999_999),
        (("proof", "finished_ms"), 1_800_000_000_251),
        (("proof", "more"), {"agent": "eve", "attested_by": "worker-1", "grant": None}),
        (("proof", "more"), 1),
        (("worker", "attest_program"), hash_of(b"another")),
        (("worker", "runner"), {**_RUNNER._asdict(), "version": "0.2.0"}),
        (("worker", "runner"), None),
        (("completer", "node_id"), "worker-2"),
        (("completer", "key"), key_named("other").public),
        (("completer", "key"), None),
    ],
)
def test_a_change_of_anything_that_is_read_for_it_is_a_fault(path: tuple[str, str], value: Any) -> None:
    envelope = _PLAIN._replace(outputs=(_OUTPUT,), agent=AgentAttestation("ada"))
    item, worker = item_of(envelope), {**_COMPLETER.worker}
    completer = _COMPLETER._replace(worker=worker)
    place, name = path
    if place == "completer":
        completer = completer._replace(**{name: value})
    else:
        {"item": item, "proof": item["proof"], "worker": worker}[place][name] = value
    whole = with_whole_proof(item, completer)["proof"]
    assert faults_of(prove(_PLAIN, _KEY)._replace(**whole), job_id=_JOB) != []


async def _done(node: MeshNode) -> Job:
    job = await node.jobs.schedule("work", {"n": 1})
    async with node.worker.running():
        return await node.jobs.wait(job)


async def _said(node: MeshNode) -> list[dict[str, Any]]:
    payloads = [orjson.loads(entry.payload) for entry in await ops(node, COMPLETE)]
    return [item["proof"] for payload in payloads for item in payload["jobs"]]


async def test_proofs_are_whole_while_an_older_node_lives_and_valid_before_and_after(local: MeshNode) -> None:
    @local.worker.handles("work")
    async def work(context: JobContext) -> int:
        return 1

    brief = await _done(local)
    await another(local, "older", BRIEF_PROOFS - 1)
    await local.oplog.hear_of_readers()
    whole = await _done(local)
    await local.store.write(Script(Statement(named("nodes")["leave"], (*local.store.mesh_id, "older"))))
    await local.oplog.hear_of_readers()
    again = await _done(local)
    assert ["envelope" in proof for proof in await _said(local)] == [False, True, False]
    for job in (brief, whole, again):
        proof = await proof_in_log(local, job)
        assert faults_of(proof, job_id=job.job_id, worker_key=local.identity.key.public) == []
        assert (await verify_proof(local, job.job_id)).faults == []
