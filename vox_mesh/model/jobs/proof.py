"""Proof of execution: a worker's signed statement about an attempt, which outsiders can verify.

Checks return all faults as text; they do not raise, whatever the input is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

import orjson
from blake3 import blake3

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import canonical, content_id, is_canonical, parse, text_id
from vox_mesh.model.base.keys import SigningKey, is_public_key, is_signed
from vox_mesh.model.documents.documents import (
    HASH,
    TIME,
    WORD,
    Fields,
    has_keys,
    is_content_id,
    is_count,
    is_hash,
    is_time,
    is_word,
    shape_faults,
    short,
)
from vox_mesh.model.jobs.steps.step_summary import StepSummary, is_step_summary
from vox_mesh.model.rhythm.tempo import LONGEST_BAR, BeatStamp, is_beat_index, is_window_id

BLAKE3: Final = "blake3:"
"""The prefix of a content id in fields that may have other kinds of hash."""

IMPORTED: Final = "imported"
"""The field that an op has for a job whose worker ran it outside of this mesh."""

MAX_OUTPUTS: Final = 256
MAX_ERROR: Final = 4_096

VERSION: Final = 1
"""The version of envelopes and bundles."""

_SIGNED: Final = b"vox-mesh proof 1\n"
NO_PROOF: Final = "a proof is an object with the keys envelope and signature"
_STATES: Final = ("succeeded", "failed")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_END_MS: Final = 253_402_300_800_000  # the year 10000


class Output(NamedTuple):
    """An output of an attempt: its name, its hash as `blake3:<hex>`, its size in bytes and its type."""

    name: str
    hash: str
    size: int
    type: str

    def document(self) -> dict[str, Any]:
        """Return the output as a JSON object."""
        return {"hash": self.hash, "name": self.name, "size": self.size, "type": self.type}


class Runner(NamedTuple):
    """The program that ran the job."""

    program: str
    version: str
    platform: str


class CommandAttestation(NamedTuple):
    """The hashes of a command's declared environment and of its executable; `None` if it is unknown."""

    environment: str
    executable: str | None = None

    def document(self) -> dict[str, Any]:
        """Return the fields of the envelope."""
        return {"attest_environment": self.environment, "attest_executable": self.executable}


class AgentAttestation(NamedTuple):
    """The agent that did the work, and the grant by which it may; the node signs on its behalf."""

    agent: str
    grant: str | None = None

    def document(self, node_id: str) -> dict[str, Any]:
        """Return the fields of the envelope."""
        return {"agent": self.agent, "attested_by": node_id, "grant": self.grant}


class Envelope(NamedTuple):
    """A worker's statement about an attempt; `attempt` is the claim token, `exit` a command's exit code."""

    job_id: str
    runner: Runner
    worker_id: str
    node_id: str
    attempt: int
    started_ms: int
    finished_ms: int
    state: str
    attest_program: str
    exit: int | None = None
    error: str | None = None
    outputs: Sequence[Output] = ()
    command: CommandAttestation | None = None
    stamp: BeatStamp | None = None
    """The bar and beat in which it finished; `None` in a mesh without an announced tempo."""
    agent: AgentAttestation | None = None
    steps: StepSummary | None = None
    """The durable steps of the job; a job without any has none."""

    def document(self) -> dict[str, Any]:
        """Return the envelope as a JSON object; the error's text is sanitized."""
        program, version, platform = self.runner
        return {
            "attempt": self.attempt,
            "attest_program": self.attest_program,
            **({} if self.command is None else self.command.document()),
            **({} if self.stamp is None else self.stamp._asdict()),
            **({} if self.agent is None else self.agent.document(self.node_id)),
            **({} if self.steps is None else {"steps": self.steps.document()}),
            "error": None if self.error is None else sanitize_error(self.error),
            "exit": self.exit,
            # The clock may have been set back meanwhile.
            "finished_at": iso_time(max(self.started_ms, self.finished_ms)),
            "job_id": self.job_id,
            "node_id": self.node_id,
            "outputs": [output.document() for output in self.outputs],
            "runner": {"platform": platform, "program": program, "version": version},
            "started_at": iso_time(self.started_ms),
            "state": self.state,
            "v": VERSION,
            "worker_id": self.worker_id,
        }


class Proof(NamedTuple):
    """An envelope as a JSON object, and the worker's signature over its job id and digest."""

    envelope: dict[str, Any]
    signature: str

    @property
    def digest(self) -> str:
        """Return the content id of the envelope."""
        return content_id(self.envelope)

    @property
    def text(self) -> str:
        """Return the proof as canonical JSON."""
        return canonical(self._asdict(), max_depth=None)


def hash_of(body: bytes) -> str:
    """Return the hash of a content, as used in envelopes."""
    return BLAKE3 + blake3(body).hexdigest()


def environment_hash(manifest: Mapping[str, Any]) -> str:
    """Return the hash of the environment that a manifest declares: of secrets, only the names."""
    declared = {name: manifest.get(name, {}) for name in ("env", "env_from")}
    return BLAKE3 + content_id(declared)


def is_time_ms(value: Any) -> bool:
    """Return whether this is a time in milliseconds that has a text."""
    return type(value) is int and 0 <= value < _END_MS


def iso_time(ms: int) -> str:
    """Return a time in milliseconds as ISO 8601 in UTC."""
    if not is_time_ms(ms):
        raise BadValue(f"{ms} is no time in milliseconds since 1970")
    seconds, rest = divmod(ms, 1_000)
    return f"{_format_second(seconds)}.{rest:03}Z"


@lru_cache(maxsize=64)  # most jobs of a busy worker start and end within a few seconds
def _format_second(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:-6]


def prove(envelope: Envelope, key: SigningKey) -> Proof:
    """Sign an envelope. Raises `BadValue` if the proof would have faults."""
    return prove_with_text(envelope, key)[0]


def prove_with_text(envelope: Envelope, key: SigningKey) -> tuple[Proof, str]:
    """Sign an envelope and return the proof with the envelope's canonical text. Raises like `prove`."""
    document = envelope.document()
    faults = [] if _is_known_valid(envelope) else _envelope_faults(document)
    if envelope.worker_id != key.public:
        faults.append(f"the key is {key.public}, and not that of the worker {envelope.worker_id}")
    if faults:
        raise BadValue(f"this can't be proven: {'; '.join(faults)}")
    text = orjson.dumps(document, option=orjson.OPT_SORT_KEYS).decode()  # canonical for these types
    return Proof(document, key.sign(_signed_text(envelope.job_id, text_id(text)))), text


def _is_known_valid(envelope: Envelope) -> bool:
    """Return whether an envelope differs from a valid one only in fields checked here: a fast path."""
    is_valid = is_content_id(envelope.job_id) and is_count(envelope.attempt) and not envelope.outputs
    worker = (envelope.runner, envelope.worker_id, envelope.node_id, envelope.attest_program, envelope.agent)
    return (
        is_valid
        and envelope.exit is None
        and envelope.command is None
        and envelope.steps is None
        and (envelope.stamp is None or envelope.stamp.is_valid)
        and _is_worker_valid(envelope.state, *worker)
    )


@lru_cache(maxsize=512)  # one for each agent of a node, and both states
def _is_worker_valid(
    state: str,
    runner: Runner,
    worker_id: str,
    node_id: str,
    attest_program: str,
    agent: AgentAttestation | None,
) -> bool:
    sample = Envelope("0" * 64, runner, worker_id, node_id, 1, 0, 0, state, attest_program, agent=agent)
    return not _envelope_faults(sample.document())


def read_proof(text: str | bytes) -> Proof:
    """Parse a proof without verifying it. Raises `BadValue` if the text is not a proof."""
    value, fault = read_canonical(text)
    if fault is None and has_keys(value, Proof._fields):
        return Proof(**value)
    raise BadValue(f"this is no proof: {fault or NO_PROOF}")


def read_canonical(text: str | bytes) -> tuple[Any, str | None]:
    """Return the value of a canonical JSON text, or the fault of the text."""
    try:
        decoded = text if isinstance(text, str) else text.decode()
        value = parse(decoded)
    except UnicodeDecodeError:
        return None, "it is not UTF-8"
    except BadValue as error:
        return None, str(error)
    if not is_canonical(decoded):
        return None, "it is not canonical JSON: it was changed, or rewritten by another program"
    return value, None


def trailers(proof: Proof) -> dict[str, str]:
    """Return the trailers that link a result to its job, proof and worker."""
    optional = {trailer: proof.envelope.get(name) for name, trailer in _OPTIONAL_TRAILERS.items()}
    return {
        "Job-Id": BLAKE3 + proof.envelope["job_id"],
        "Proof-Of-Execution": BLAKE3 + proof.digest,
        "Worker-Id": proof.envelope["worker_id"],
        "Attest-Program": proof.envelope["attest_program"],
        **{trailer: str(value) for trailer, value in optional.items() if value is not None},
        "Attest-Sig": proof.signature,
    }


def faults_of(
    proof: Proof,
    *,
    job_id: str,
    worker_key: str | None = None,
    trailers: Mapping[str, str] | None = None,
    manifest: Any = None,
) -> list[str]:
    """Return all faults of a proof of this job.

    If they are given, it must be by this worker, with these trailers and the environment of this manifest.
    """
    envelope, signature = proof
    shape = _envelope_faults(envelope)
    faults = [*shape]
    if isinstance(envelope, dict):
        proven_id, worker_id = envelope.get("job_id"), envelope.get("worker_id")
        if proven_id != job_id:
            faults.append(f"it is the proof of job {short(proven_id)}, not of {job_id}")
        if worker_key is not None and worker_id != worker_key:
            faults.append(f"it is by the worker {short(worker_id)}, not by {worker_key}")
        if not _is_signed(envelope, signature):
            faults.append("the signature is not the worker's for this job and this envelope")
    if trailers is not None and not shape:
        faults += _trailer_faults(proof, trailers)
    if manifest is not None and not shape:
        faults += _attestation_faults(envelope, manifest)
    return faults


def attestation_remarks(envelope: Mapping[str, Any], manifest: Mapping[str, Any]) -> list[str]:
    """Return what a valid proof of a command leaves open about what ran."""
    if "command" not in manifest:
        return []
    if "attest_executable" not in envelope:
        return ["the executable and the environment are not attested"]
    if envelope["attest_executable"] is None:
        return ["the executable is not attested: it did not run, was changed meanwhile, or was not hashed"]
    return []


def _attestation_faults(envelope: Mapping[str, Any], manifest: Any) -> list[str]:
    if "attest_environment" not in envelope:
        return []
    if not isinstance(manifest, Mapping) or "command" not in manifest:
        return ["it attests a command, and the manifest has none"]
    expected = environment_hash(manifest)
    if envelope["attest_environment"] == expected:
        return []
    return [f"attest_environment is {envelope['attest_environment']}, and the manifest's is {expected}"]


def _signed_text(job_id: str, digest: str) -> bytes:
    return b"%b%b\n%b" % (_SIGNED, job_id.encode(), digest.encode())


def _is_signed(envelope: dict[str, Any], signature: Any) -> bool:
    job_id, worker_id = envelope.get("job_id"), envelope.get("worker_id")
    if not (isinstance(signature, str) and isinstance(worker_id, str) and isinstance(job_id, str)):
        return False
    try:
        digest = content_id(envelope)
    except BadValue:
        return False
    return is_signed(_signed_text(job_id, digest), signature, worker_id)


def _trailer_faults(proof: Proof, given: Any) -> list[str]:
    expected = trailers(proof)
    if not isinstance(given, Mapping):
        return [f"the trailers are {short(given)}, and not an object"]
    faults = [f"the trailer {short(name)} is not known" for name in given if name not in expected]
    for name, value in expected.items():
        if name not in given:
            faults.append(f"the trailer {name} is missing")
        elif given[name] != value:
            faults.append(f"the trailer {name} is {short(given[name])}, and should be {value}")
    return faults


# --- envelope fields -----------------------------------------------------------------------------


_FIELDS: Final[Fields] = {
    "attempt": (lambda value: is_count(value) and value > 0, "a whole number from 1"),
    "attest_program": (is_hash, HASH),
    "error": (
        lambda value: value is None or (type(value) is str and value == sanitize_error(value)),
        f"null, or text of at most {MAX_ERROR} characters",
    ),
    "exit": (
        lambda value: value is None or (type(value) is int and abs(value) < 2**32),
        "null, or an exit code",
    ),
    "finished_at": (is_time, TIME),
    "job_id": (is_content_id, "64 lowercase hexadecimal digits"),
    "node_id": (is_word, WORD),
    "outputs": (
        lambda value: type(value) is list and len(value) <= MAX_OUTPUTS,
        f"a list of at most {MAX_OUTPUTS}",
    ),
    "runner": (lambda value: type(value) is dict, "an object"),
    "started_at": (is_time, TIME),
    "state": (lambda value: type(value) is str and value in _STATES, " or ".join(_STATES)),
    "v": (lambda value: type(value) is int and value == VERSION, f"{VERSION}"),
    "worker_id": (lambda value: type(value) is str and is_public_key(value), "an ed25519: public key"),
}
_COMMAND_FIELDS: Final[Fields] = {
    "attest_environment": (is_hash, HASH),
    "attest_executable": (lambda value: value is None or is_hash(value), f"null, or {HASH}"),
}
"""The fields of the envelope of a command that says what ran; older ones and those of handlers do not."""
_STAMP_FIELDS: Final[Fields] = {
    "window": (is_window_id, "the name of a bar"),
    "beat_index": (is_beat_index, f"a whole number from 1 to {LONGEST_BAR}"),
}
"""The fields of the envelope in a mesh with a tempo; older ones do not have them."""
_AGENT_FIELDS: Final[Fields] = {
    "agent": (is_word, WORD),
    "attested_by": (is_word, WORD),
    "grant": (lambda value: value is None or is_word(value), f"null, or {WORD}"),
}
"""The fields of the envelope of an agent's work."""
_STEP_FIELDS: Final[Fields] = {"steps": (is_step_summary, "a summary of steps")}
"""The field of the envelope of a job with durable steps."""
_OPTIONAL_FIELDS: Final = (_COMMAND_FIELDS, _STAMP_FIELDS, _AGENT_FIELDS, _STEP_FIELDS)
_OPTIONAL_TRAILERS: Final = {
    "attest_executable": "Attest-Executable",
    "attest_environment": "Attest-Environment",
    "window": "Window",
    "beat_index": "Beat-Index",
}
_OUTPUT_FIELDS: Final[Fields] = {
    "hash": (is_hash, HASH),
    "name": (is_word, WORD),
    "size": (is_count, "a whole number of bytes"),
    "type": (is_word, WORD),
}
_RUNNER_FIELDS: Final[Fields] = dict.fromkeys(Runner._fields, (is_word, WORD))


def output_faults(output: Output) -> list[str]:
    """Return the faults in the name, hash, size and type of an output."""
    return shape_faults("the output", output.document(), _OUTPUT_FIELDS)


def _envelope_faults(envelope: Any) -> list[str]:
    faults = shape_faults("the envelope", envelope, _fields_of(envelope))
    if faults:
        return faults
    faults = shape_faults("the runner", envelope["runner"], _RUNNER_FIELDS)
    for output in envelope["outputs"]:
        faults += shape_faults("an output", output, _OUTPUT_FIELDS)
    if envelope["finished_at"] < envelope["started_at"]:
        faults.append(f"it finished at {envelope['finished_at']}, before it started")
    if envelope["error"] is not None and envelope["state"] == "succeeded":
        faults.append("it succeeded, and has an error")
    if envelope.get("attested_by", envelope["node_id"]) != envelope["node_id"]:
        faults.append(f"it is attested by {envelope['attested_by']}, and its node is {envelope['node_id']}")
    return faults


def _fields_of(envelope: Any) -> Fields:
    """Return the fields that an envelope must have: of an optional group, all or none."""
    fields = _FIELDS
    for group in _OPTIONAL_FIELDS:
        if type(envelope) is dict and not envelope.keys().isdisjoint(group):
            fields = {**fields, **group}
    return fields


def sanitize_error(error: str) -> str:
    """Return an error text cut to the maximum length, without lone surrogates and NULs."""
    cut = error if len(error) <= MAX_ERROR else error[: MAX_ERROR - 1] + "…"
    # File names that are not UTF-8 have lone surrogates; older SQLite ends a JSON string at a NUL.
    return cut.encode(errors="replace").decode().replace("\0", "\ufffd")
