"""Proofs of execution: of one job, one attempt and one worker, and of not a byte that is not theirs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model.base.test_canonical import values
from tests.support.oplog.chains import key_named
from tests.support.running.examples import few, many
from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import canonical, content_id, is_canonical
from vox_mesh.model.jobs.bundle import bundle, check_bundle
from vox_mesh.model.jobs.proof import (
    MAX_ERROR,
    MAX_OUTPUTS,
    CommandAttestation,
    Envelope,
    Output,
    Proof,
    Runner,
    environment_hash,
    faults_of,
    hash_of,
    iso_time,
    prove,
    read_proof,
    trailers,
)
from vox_mesh.model.oplog.chain import signed_text
from vox_mesh.model.rhythm.tempo import BeatStamp, window_id

KEY: Final = key_named("worker")
OTHER: Final = key_named("other")
MANIFEST: Final = {"args": [], "command": ["/bin/echo", "¡hola!"], "env": {"RATE": "0.5"}, "timeout": 30}
JOB: Final = content_id(MANIFEST)
PROGRAM: Final = hash_of(b"the runner")
OUT: Final = b"hello\n"
ENVELOPE: Final = Envelope(
    job_id=JOB,
    runner=Runner("vox-mesh", "0.1.0", "linux-x86_64"),
    worker_id=KEY.public,
    node_id="worker-1",
    attempt=2,
    started_ms=1_800_000_000_000,
    finished_ms=1_800_000_000_250,
    state="succeeded",
    attest_program=PROGRAM,
    exit=0,
    # Two with the same content, and names that are one bit apart: neither may pass for the other.
    outputs=(
        Output("out0", hash_of(OUT), len(OUT), "text/plain"),
        Output("out1", hash_of(OUT), len(OUT), "text/plain"),
        Output("log", hash_of(b"large"), 5, "text/plain"),
    ),
)
PROOF: Final = prove(ENVELOPE, KEY)
ATTESTED: Final = ENVELOPE._replace(
    command=CommandAttestation(environment_hash(MANIFEST), hash_of(b"the echo program"))
)
BUNDLE: Final = bundle(MANIFEST, PROOF, {hash_of(OUT): OUT}).encode()


def changed(path: str, value: Any) -> Proof:
    """The proof with one thing in its envelope changed, under the old signature."""
    envelope = orjson.loads(canonical(PROOF.envelope))
    *way, last = path.split(".")
    inner = envelope
    for step in way:
        inner = inner[int(step) if step.isdecimal() else step]
    inner[last] = value
    return Proof(envelope, PROOF.signature)


def signed(envelope: Any) -> Proof:
    """Any envelope under a signature that holds: only its shape can be wrong."""
    text = b"vox-mesh proof 1\n" + JOB.encode() + b"\n" + content_id(envelope).encode()
    return Proof(envelope, KEY.sign(text))


# --- what is proven -------------------------------------------------------------------------------


def test_what_was_proven_holds() -> None:
    assert faults_of(PROOF, job_id=JOB, worker_key=KEY.public, trailers=trailers(PROOF)) == []


def test_the_envelope_is_written_as_pinned() -> None:
    assert canonical(PROOF.envelope) == (
        f'{{"attempt":2,"attest_program":"{PROGRAM}","error":null,"exit":0,'
        f'"finished_at":"2027-01-15T08:00:00.250Z","job_id":"{JOB}","node_id":"worker-1","outputs":['
        + ",".join(
            f'{{"hash":"{each.hash}","name":"{each.name}","size":{each.size},"type":"text/plain"}}'
            for each in ENVELOPE.outputs
        )
        + '],"runner":{"platform":"linux-x86_64","program":"vox-mesh","version":"0.1.0"},'
        f'"started_at":"2027-01-15T08:00:00.000Z","state":"succeeded","v":1,"worker_id":"{KEY.public}"}}'
    )


def test_the_signature_is_over_job_and_digest_and_can_not_be_taken_for_another_one() -> None:
    assert signed(PROOF.envelope) == PROOF
    of_an_op = Proof(PROOF.envelope, KEY.sign(signed_text(PROOF.digest)))
    assert "the signature is not the worker's" in faults_of(of_an_op, job_id=JOB)[0]


def test_the_five_trailers_have_their_prefixes() -> None:
    assert trailers(PROOF) == {
        "Job-Id": f"blake3:{JOB}",
        "Proof-Of-Execution": hash_of(canonical(PROOF.envelope).encode()),
        "Worker-Id": KEY.public,
        "Attest-Program": PROGRAM,
        "Attest-Sig": PROOF.signature,
    }
    assert KEY.public.startswith("ed25519:")
    assert PROOF.signature.startswith("ed25519:")


def test_a_command_may_have_its_executable_and_environment_attested() -> None:
    proof = prove(ATTESTED, KEY)
    assert faults_of(proof, job_id=JOB, worker_key=KEY.public, manifest=MANIFEST) == []
    assert {**trailers(proof), "Attest-Sig": ""}.items() >= {
        "Attest-Executable": hash_of(b"the echo program"),
        "Attest-Environment": hash_of(b'{"env":{"RATE":"0.5"},"env_from":{}}'),
    }.items()
    faults, remarks = check_bundle(bundle(MANIFEST, proof, {}), worker_key=KEY.public)
    assert (faults, [each for each in remarks if "attested" in each]) == ([], [])
    unknown = prove(ENVELOPE._replace(command=CommandAttestation(environment_hash(MANIFEST))), KEY)
    assert "Attest-Executable" not in trailers(unknown)
    (remark,) = [each for each in check_bundle(bundle(MANIFEST, unknown, {})).remarks if "attested" in each]
    assert remark.startswith("the executable is not attested: ")


def test_a_proof_may_have_the_bar_and_beat_in_which_it_finished() -> None:
    stamp = BeatStamp(window_id("east", 1_800_000_000_000), 3)
    proof = prove(ENVELOPE._replace(stamp=stamp), KEY)
    assert faults_of(proof, job_id=JOB, worker_key=KEY.public, trailers=trailers(proof)) == []
    added = {name: value for name, value in trailers(proof).items() if name not in trailers(PROOF)}
    assert added == {"Window": stamp.window, "Beat-Index": "3"}
    assert check_bundle(bundle(MANIFEST, proof, {}), worker_key=KEY.public).faults == []
    for wrong in (stamp._replace(window="east"), stamp._replace(beat_index=0)):
        with pytest.raises(BadValue, match="this can't be proven"):
            prove(ENVELOPE._replace(stamp=wrong, exit=None, outputs=()), KEY)


@pytest.mark.parametrize(
    ("stamp", "fault"),
    [
        ({"window": "0" * 16}, "the envelope has no beat_index"),
        ({"beat_index": 1}, "the envelope has no window"),
        ({"window": "0" * 16, "beat_index": True}, "beat_index of the envelope is True"),
        ({"window": "0" * 16, "beat_index": 65}, "beat_index of the envelope is 65"),
        ({"window": "0" * 17, "beat_index": 1}, "window of the envelope is "),
    ],
)
def test_a_bar_and_a_beat_are_both_there_and_have_their_form(stamp: dict[str, Any], fault: str) -> None:
    (found,) = faults_of(signed({**PROOF.envelope, **stamp}), job_id=JOB)
    assert found.startswith(fault)


@pytest.mark.parametrize("name", ["handler", "command"])
def test_a_bundle_of_an_earlier_version_holds(name: str) -> None:
    stored = (Path(__file__).parent / "bundles" / f"{name}.json").read_bytes()
    faults, _ = check_bundle(stored, worker_key=orjson.loads(stored)["trailers"]["Worker-Id"])
    assert faults == []


def test_of_secrets_only_the_names_are_attested() -> None:
    declared = {**MANIFEST, "env_from": {"TOKEN": "NPM_TOKEN"}}
    assert environment_hash(declared) == hash_of(b'{"env":{"RATE":"0.5"},"env_from":{"TOKEN":"NPM_TOKEN"}}')


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"attest_executable": hash_of(b"another")}, "the signature is not the worker's"),
        ({"attest_environment": environment_hash({})}, f"the manifest's is {environment_hash(MANIFEST)}"),
        ({"attest_executable": JOB}, "attest_executable of the envelope"),
        ({"attest_environment": None}, "attest_environment of the envelope"),
    ],
)
def test_a_changed_attestation_does_not_hold(change: dict[str, Any], fault: str) -> None:
    proof = prove(ATTESTED, KEY)
    changed_proof = Proof({**proof.envelope, **change}, proof.signature)
    assert any(fault in each for each in faults_of(changed_proof, job_id=JOB, manifest=MANIFEST))


def test_an_attestation_is_whole_and_of_a_command() -> None:
    whole = prove(ATTESTED, KEY).envelope
    half = signed({name: value for name, value in whole.items() if name != "attest_environment"})
    assert faults_of(half, job_id=JOB) == ["the envelope has no attest_environment"]
    assert faults_of(signed(whole), job_id=JOB, manifest={"kind": "a.b"}) == [
        "it attests a command, and the manifest has none"
    ]


def test_a_proof_is_read_from_its_canonical_text_alone() -> None:
    assert read_proof(PROOF.text) == read_proof(PROOF.text.encode()) == PROOF
    for text in (PROOF.text + "\n", PROOF.text.replace(":2,", ":2.0,"), "{}", "[", b"\xff", '{"envelope":1}'):
        with pytest.raises(BadValue, match="this is no proof"):
            read_proof(text)


@many
@given(st.text(st.characters(), max_size=12), st.integers(0, 2 * MAX_ERROR))
def test_there_is_no_error_that_can_not_be_reported(text: str, times: int) -> None:
    proof = prove(ENVELOPE._replace(state="failed", exit=1, error=(text * times)), KEY)
    assert faults_of(proof, job_id=JOB) == []
    assert read_proof(proof.text) == proof
    assert "\0" not in proof.envelope["error"]


def test_a_clock_that_was_set_back_does_not_spoil_a_proof() -> None:
    proof = prove(ENVELOPE._replace(finished_ms=ENVELOPE.started_ms - 5_000), KEY)
    assert proof.envelope["finished_at"] == proof.envelope["started_at"]
    assert faults_of(proof, job_id=JOB) == []


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (951_782_400_007, "2000-02-29T00:00:00.007Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_times_are_written_in_full(ms: int, text: str) -> None:
    assert iso_time(ms) == text


@pytest.mark.parametrize(
    "wrong",
    [
        {"job_id": f"blake3:{JOB}"},
        {"job_id": JOB.upper()},
        {"worker_id": OTHER.public},
        {"attempt": 0},
        {"attempt": True},
        {"state": "running"},
        {"state": "succeeded", "error": "no"},
        {"attest_program": JOB},
        {"node_id": ""},
        {"runner": Runner("vox-mesh", "0.1.0\n", "linux")},
        {"exit": 1.0},
        {"started_ms": -1},
        {"finished_ms": 10**15},
        {"outputs": [Output("a", JOB, 1, "text/plain")]},
        {"outputs": [Output("a\0", hash_of(b""), 0, "text/plain")]},
        {"outputs": [Output("a", hash_of(b""), -1, "text/plain")]},
        {"outputs": [*ENVELOPE.outputs] * MAX_OUTPUTS},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_what_would_not_pass_is_not_signed(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadValue):
        prove(ENVELOPE._replace(**wrong), KEY)


# --- what is refused ------------------------------------------------------------------------------


def test_a_proof_does_not_pass_for_another_job_or_worker() -> None:
    (of_job,) = faults_of(PROOF, job_id=content_id({}))
    assert of_job.startswith("it is the proof of job ")
    (of_worker,) = faults_of(PROOF, job_id=JOB, worker_key=OTHER.public)
    assert of_worker.endswith(f"not by {OTHER.public}")


def test_a_signature_by_another_key_does_not_hold() -> None:
    other = prove(ENVELOPE._replace(worker_id=OTHER.public), OTHER)
    assert faults_of(Proof(PROOF.envelope, other.signature), job_id=JOB)
    assert faults_of(Proof(other.envelope, PROOF.signature), job_id=JOB)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("v", 2),
        ("job_id", content_id({})),
        ("runner.program", "vox-mess"),
        ("runner.version", "0.1.1"),
        ("runner.platform", "linux-aarch64"),
        ("worker_id", OTHER.public),
        ("node_id", "worker-2"),
        ("attempt", 3),
        ("started_at", "2027-01-15T07:59:59.000Z"),
        ("finished_at", "2027-01-15T08:00:00.251Z"),
        ("exit", None),
        ("state", "failed"),
        ("error", ""),
        ("outputs", []),
        ("outputs.0.name", "out2"),
        ("outputs.0.hash", hash_of(b"other")),
        ("outputs.0.size", 7),
        ("outputs.0.type", "text/html"),
        ("attest_program", hash_of(b"another runner")),
    ],
)
def test_every_changed_field_is_noticed(path: str, value: Any) -> None:
    assert any("signature" in fault for fault in faults_of(changed(path, value), job_id=JOB))


@pytest.mark.parametrize(
    ("path", "value", "answer"),
    [
        ("v", 1.0, "v of the envelope is 1.0, and not 1"),
        ("v", True, "v of the envelope"),
        ("attempt", 2.0, "a whole number"),
        ("outputs.0.size", 6.0, "size of an output"),
        ("outputs.0.size", 2.0**53, "size of an output"),
        ("outputs.0.mode", 0o600, "an output has the unknown key 'mode'"),
        ("runner.host", "a", "the runner has the unknown key 'host'"),
        ("runner", "vox-mesh", "runner of the envelope is 'vox-mesh', and not an object"),
        ("extra", None, "the envelope has the unknown key 'extra'"),
        ("started_at", "2027-01-15T08:00:00Z", "a time such as"),
        ("started_at", "2027-02-30T08:00:00.000Z", "a time such as"),
        ("started_at", "2027-01-15T08:00:00.000+00:00", "a time such as"),
        ("finished_at", "2027-01-15T07:00:00.000Z", "before it started"),
        ("error", "but why", "it succeeded, and has an error"),
        ("error", "\0", "error of the envelope"),
        ("error", "x" * (MAX_ERROR + 1), "error of the envelope"),
        ("worker_id", "ed25519:" + "00" * 32, "public key"),
        ("exit", "0", "an exit code"),
        ("state", "aborted", "succeeded or failed"),
    ],
)
def test_a_wrong_shape_is_reported_even_if_it_is_signed(path: str, value: Any, answer: str) -> None:
    faults = faults_of(signed(changed(path, value).envelope), job_id=JOB)
    assert any(answer in fault for fault in faults), faults


def test_all_that_is_missing_is_reported() -> None:
    faults = faults_of(signed({}), job_id=JOB)
    assert sum(fault.startswith("the envelope has no ") for fault in faults) == len(PROOF.envelope)


@pytest.mark.parametrize("name", trailers(PROOF))
def test_every_trailer_is_compared(name: str) -> None:
    right = trailers(PROOF)
    for wrong in (right | {name: right[name].upper()}, {k: v for k, v in right.items() if k != name}):
        (fault,) = faults_of(PROOF, job_id=JOB, trailers=wrong)
        assert fault.startswith(f"the trailer {name} is ")
    assert faults_of(PROOF, job_id=JOB, trailers=right | {"Signed-Off-By": "me"})


@few
@given(values)
def test_nothing_that_is_given_to_check_raises(value: Any) -> None:
    for proof in (Proof(value, PROOF.signature), Proof(PROOF.envelope, value), changed("runner", value)):
        assert faults_of(proof, job_id=JOB, trailers=trailers(PROOF))


# --- bundles --------------------------------------------------------------------------------------


def test_a_bundle_holds_and_says_what_it_can_not_show() -> None:
    faults, remarks = check_bundle(BUNDLE)
    assert faults == []
    assert [remark.split()[0] for remark in remarks] == ["log", "the", "the"]
    assert remarks[2] == "the executable and the environment are not attested"
    assert "5 bytes" in remarks[0]
    assert KEY.public in remarks[1]
    assert check_bundle(BUNDLE, worker_key=KEY.public).remarks == [remarks[0], remarks[2]]


def test_a_bundle_signed_by_a_stranger_holds_only_by_itself() -> None:
    forged = bundle(MANIFEST, prove(ENVELOPE._replace(worker_id=OTHER.public), OTHER), {})
    assert check_bundle(forged).faults == []
    assert check_bundle(forged, worker_key=KEY.public).faults


def test_no_bundle_is_made_of_a_proof_that_does_not_hold() -> None:
    with pytest.raises(BadValue, match="does not hold"):
        bundle({**MANIFEST, "timeout": 31}, PROOF, {})
    with pytest.raises(BadValue, match="does not hold"):
        bundle(MANIFEST, changed("attempt", 3), {})


def test_a_flip_at_any_place_of_a_bundle_is_refused() -> None:
    for place in range(len(BUNDLE)):
        flipped = bytearray(BUNDLE)
        flipped[place] ^= 1
        assert check_bundle(bytes(flipped)).faults, (
            f"byte {place}: {flipped[max(0, place - 20) : place + 20]!r}"
        )


@many
@given(st.integers(0, len(BUNDLE) - 1), st.integers(1, 255))
def test_any_flip_of_a_bundle_is_refused(place: int, mask: int) -> None:
    flipped = bytearray(BUNDLE)
    flipped[place] ^= mask
    assert check_bundle(bytes(flipped)).faults


@many
@given(st.integers(0, len(BUNDLE)), st.integers(0, 40), st.binary(max_size=4))
def test_a_bundle_with_more_less_or_other_bytes_is_refused(place: int, gone: int, more: bytes) -> None:
    other = BUNDLE[:place] + more + BUNDLE[place + gone :]
    assert bool(check_bundle(other).faults) is (other != BUNDLE)


def entry(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    """A change to the first artifact of a bundle."""
    return lambda document: document["artifacts"][0].update(changes)


@pytest.mark.parametrize(
    ("change", "answer"),
    [
        (lambda document: document.pop("trailers"), "with the keys"),
        (lambda document: document.update(note=1), "with the keys"),
        (lambda document: document.update(v=True), "version"),
        (lambda document: document.update(job_id=content_id({})), "its manifest is that of"),
        (lambda document: document["manifest"].update(timeout=31), "its manifest is that of"),
        (lambda document: document.update(proof=None), "keys envelope and signature"),
        (lambda document: document["proof"].update(more=1), "keys envelope and signature"),
        (lambda document: document.update(trailers=None), "the trailer Job-Id is missing"),
        (lambda document: document.update(trailers=[1]), "not an object"),
        (lambda document: document["trailers"].pop("Worker-Id"), "the trailer Worker-Id is missing"),
        (lambda document: document.update(artifacts={}), "not a list"),
        (lambda document: document.update(artifacts=[]), "one for one"),
        (lambda document: document["artifacts"].reverse(), "one for one"),
        (lambda document: document["artifacts"][0].pop("body"), "not base64"),
        (entry(name="out1"), "one for one"),
        (entry(size=True), "one for one"),
        (entry(mode=1), "one for one"),
        (entry(body="aGVsbG8K="), "not base64"),
        (entry(body=1), "not base64"),
        (entry(body="aGVsbG8h"), "is not what the proof says"),
        (entry(body=""), "is not what the proof says"),
    ],
)
def test_what_is_wrong_with_a_bundle_is_reported(change: Callable[[Any], Any], answer: str) -> None:
    document = orjson.loads(BUNDLE)
    change(document)
    faults = check_bundle(canonical(document)).faults
    assert any(answer in fault for fault in faults), faults


def test_a_body_has_one_text_only() -> None:
    one = b"a"
    envelope = ENVELOPE._replace(outputs=[Output("one", hash_of(one), 1, "text/plain")])
    text = bundle(MANIFEST, prove(envelope, KEY), {hash_of(one): one})
    assert check_bundle(text).faults == []
    assert '"body":"YQ=="' in text
    assert check_bundle(text.replace('"YQ=="', '"YR=="')).faults == ["the body of one is not base64"]


@few
@given(st.dictionaries(st.sampled_from(sorted(orjson.loads(BUNDLE))), values, min_size=1))
def test_no_bundle_makes_the_check_raise(parts: dict[str, Any]) -> None:
    text = canonical({**orjson.loads(BUNDLE), **parts})
    assert is_canonical(text)
    assert bool(check_bundle(text).faults) is (text != BUNDLE.decode())
