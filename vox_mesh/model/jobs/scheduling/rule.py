"""Rules: when an op of a kind is logged, a job is scheduled, once for each op."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadManifest, BadValue
from vox_mesh.model.base.canonical import canonical, parse
from vox_mesh.model.jobs.manifest import Manifest
from vox_mesh.model.oplog.chain import LogEntry
from vox_mesh.model.oplog.verification import READ_ERRORS

MAX_FIELDS: Final = 8
"""The most payload fields that a rule compares."""

_OP: Final = "op"


class RuleDefinition(NamedTuple):
    """What an op fixes about a rule: for which ops it is, and the core and the options of its jobs.

    `fields` is canonical JSON: payload fields by name, and the values that they must have.
    """

    op_kind: str
    fields: str
    manifest: str
    options: str

    def matches(self, entry: LogEntry) -> bool:
        """Return whether the rule is for an op: by its kind and the fields of its payload."""
        if entry.kind != self.op_kind:
            return False
        try:
            wanted: Any = parse(self.fields)
            payload: Any = parse(entry.payload) if wanted else {}
            # As text, in which true and 1 differ.
            return all(
                name in payload and canonical(payload[name], max_depth=None) == canonical(value)
                for name, value in wanted.items()
            )
        except READ_ERRORS:
            return False


def field_filter(fields: Mapping[str, Any]) -> str:
    """Return the fields as a definition has them. Raises `BadValue` if there are too many."""
    if len(fields) > MAX_FIELDS:
        raise BadValue(
            f"a rule must compare at most {MAX_FIELDS} fields, got {len(fields)}",
            hint="compare the others in the handler",
        )
    return canonical(dict(fields))


def check_payload(manifest: Manifest) -> None:
    """Raise `BadManifest` if the payload has no room for the op that fires the rule."""
    if manifest.payload is not None and (not isinstance(manifest.payload, dict) or _OP in manifest.payload):
        raise BadManifest([f"payload: must be an object without the field {_OP}, which a rule adds"])


def nonce_of(name: str, entry: LogEntry) -> str:
    """Return the nonce of the job for an op, identical on every node: the job is scheduled once."""
    return f"{name}@{entry.op_id}"


def with_op(job: Manifest, entry: LogEntry) -> Manifest:
    """Return the manifest of a rule's job with the op in its payload; a command has none.

    The payload of the op is left out if the job's payload would be too large or too deep with it.
    """
    if job.command is not None:
        return job
    op = {"id": entry.op_id, "kind": entry.kind, "node": entry.node_id}
    own = job.payload or {}
    try:
        return _with_payload(job, {**own, _OP: {**op, "payload": parse(entry.payload)}})
    except BadValue:
        return _with_payload(job, {**own, _OP: {**op, "payload": None}})


def _with_payload(job: Manifest, payload: Mapping[str, Any]) -> Manifest:
    checked = Manifest.of(kind=job.kind, payload=payload).payload
    return job.model_copy(update={"payload": checked})
