"""Brief proofs: an op that completes jobs does not repeat in a proof what it has elsewhere.

The envelope is put together again from the entry: its author and the author's key, the item of the job, and
what is the same for all jobs of the op. The signature is over the whole envelope: no change goes unnoticed.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadValue
from vox_mesh.model.base.json_text import UNREADABLE, read_stored
from vox_mesh.model.base.keys import signature_of_bytes, signature_to_bytes
from vox_mesh.model.jobs.proof import VERSION, Envelope, Proof, Runner, iso_time
from vox_mesh.model.oplog.chain import node_of
from vox_mesh.store.rows import Row

WORKER: Final = "worker"
"""The field of an op with what the envelopes of all its jobs have in common."""

_COMMON: Final = ("attest_program", "runner")
_IN_ITEM: Final = {
    "attempt": "claim_token",
    "error": "reason",
    "exit": "exit_code",
    "job_id": "job_id",
    "outputs": "output_artifacts",
    "state": "state",
}
"""The fields of an envelope that the item of the job has, and their names there."""

_OF_ENTRY: Final = ("node_id", "worker_id", "v", "started_at", "finished_at")
_ELSEWHERE: Final = frozenset((*_COMMON, *_IN_ITEM, *_OF_ENTRY))
_MORE: Final = "more"
_KEYS: Final = frozenset(("signature", "started_ms", "finished_ms"))
_SIGNATURE_BYTES: Final = 64


class Completer(NamedTuple):
    """Who completed jobs: the author of the entry, its key then, and that field of the op."""

    node_id: str
    key: str | None
    worker: Any


KeyAt = Callable[[str, int], Awaitable[str | None]]
"""Returns the key by which the entry of a chain with a number must be signed."""


def common_part(runner: Runner, attest_program: str) -> dict[str, Any]:
    """Return what an op has once for all its jobs."""
    return {"attest_program": attest_program, "runner": runner._asdict()}


def brief_proof(envelope: Envelope, proof: Proof) -> dict[str, Any]:
    """Return what an op has of the proof of this envelope, besides the item of the job."""
    signature = base64.urlsafe_b64encode(signature_to_bytes(proof.signature)).rstrip(b"=").decode()
    brief: dict[str, Any] = {
        "signature": signature,
        "started_ms": envelope.started_ms,
        "finished_ms": max(envelope.started_ms, envelope.finished_ms),
    }
    if len(proof.envelope) > len(_ELSEWHERE):
        brief[_MORE] = {name: value for name, value in proof.envelope.items() if name not in _ELSEWHERE}
    return brief


def with_whole_proof(item: Mapping[str, Any], completer: Completer) -> Mapping[str, Any]:
    """Return the item of a job, its proof with the whole envelope; what can't be read is not changed."""
    return {**item, "proof": _whole_proof(item, completer)} if "proof" in item else item


async def completed_items(rows: Iterable[Row], key_at: KeyAt) -> dict[str, Mapping[str, Any]]:
    """Return by job the items of rows: each with its op's chain, number and field."""
    found: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        try:
            item, worker = read_stored(row["item"]), read_stored(row["worker"])
        except BadValue as error:  # any joined node can write such an op
            found[row["job_id"]] = {"proof": {UNREADABLE: str(error)}}
            continue
        completer = Completer(node_of(row["chain"]), await key_at(row["chain"], row["seq"]), worker)
        found[row["job_id"]] = with_whole_proof(item, completer)
    return found


def _whole_proof(item: Mapping[str, Any], completer: Completer) -> Any:
    given, worker = item["proof"], completer.worker
    if not (isinstance(given, dict) and isinstance(worker, dict) and given.keys() - {_MORE} == _KEYS):
        return given
    more = given.get(_MORE, {})
    try:
        envelope = {
            **(more if isinstance(more, dict) else {}),
            **{name: worker.get(name) for name in _COMMON},
            **{name: item.get(column) for name, column in _IN_ITEM.items()},
            "node_id": completer.node_id,
            "worker_id": completer.key,
            "v": VERSION,
            "started_at": iso_time(given["started_ms"]),
            "finished_at": iso_time(given["finished_ms"]),
        }
        return {"envelope": envelope, "signature": _signature(given["signature"])}
    except (BadValue, ValueError, TypeError):
        return given


def _signature(text: str) -> str:
    try:
        data = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise BadValue("the signature of a brief proof must be in base64") from error
    if len(data) != _SIGNATURE_BYTES:
        raise BadValue(f"the signature of a brief proof must have {_SIGNATURE_BYTES} bytes, got {len(data)}")
    return signature_of_bytes(data)
