"""Bundles: documents to check a proof offline, with the contents of outputs."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from vox_mesh.errors import BadValue
from vox_mesh.model.base.canonical import canonical, content_id
from vox_mesh.model.documents.documents import has_keys, short
from vox_mesh.model.jobs.proof import (
    NO_PROOF,
    VERSION,
    Proof,
    attestation_remarks,
    faults_of,
    hash_of,
    read_canonical,
    trailers,
)


class BundleCheck(NamedTuple):
    """The faults of a bundle, and remarks for readers who rely on it."""

    faults: list[str]
    remarks: list[str]


_NO_BODY: Final = object()
_BUNDLE: Final = ("artifacts", "job_id", "manifest", "proof", "trailers", "v")


def bundle(manifest: Mapping[str, Any], proof: Proof, bodies: Mapping[str, bytes]) -> str:
    """Return a document to check a proof offline; `bodies` are contents by hash.

    It is canonical JSON: do not even add a line break. Raises `BadValue` if the proof has faults.
    """
    job_id = content_id(manifest)
    if faults := faults_of(proof, job_id=job_id, manifest=manifest):
        raise BadValue(f"the proof does not hold: {'; '.join(faults)}")
    artifacts: list[dict[str, Any]] = []
    for output in proof.envelope["outputs"]:
        body = bodies.get(output["hash"])
        artifacts.append({**output, "body": None if body is None else base64_of(body)})
    return canonical(
        {
            "artifacts": artifacts,
            "job_id": job_id,
            "manifest": dict(manifest),
            "proof": proof._asdict(),
            "trailers": trailers(proof),
            "v": VERSION,
        },
        max_depth=None,
    )


def check_bundle(text: str | bytes, *, worker_key: str | None = None) -> BundleCheck:
    """Check a bundle offline; with `worker_key`, also check that this worker signed its proof."""
    value, fault = read_canonical(text)
    if fault is not None:
        return BundleCheck([fault], [])
    if not has_keys(value, _BUNDLE):
        return BundleCheck([f"a bundle is an object with the keys {', '.join(_BUNDLE)}"], [])
    faults = []
    if type(value["v"]) is not int or value["v"] != VERSION:
        faults.append(f"the bundle's version is {short(value['v'])}, and not {VERSION}")
    job_id = content_id(value["manifest"])
    if value["job_id"] != job_id:
        faults.append(f"the bundle's job is {short(value['job_id'])}, but its manifest is that of {job_id}")
    if not has_keys(value["proof"], Proof._fields):
        return BundleCheck([*faults, NO_PROOF], [])
    proof = Proof(**value["proof"])
    given, manifest = value["trailers"] or {}, value["manifest"]
    wrong = faults_of(proof, job_id=job_id, worker_key=worker_key, trailers=given, manifest=manifest)
    if wrong:
        return BundleCheck([*faults, *wrong], [])
    artifacts, remarks = _check_artifacts(value["artifacts"], proof.envelope["outputs"])
    if worker_key is None:
        remarks.append(
            "the signature was checked with the key that the proof itself names: whether"
            f" {proof.envelope['worker_id']} is a worker of your mesh, only you can tell"
        )
    if isinstance(manifest, Mapping):
        remarks += attestation_remarks(proof.envelope, manifest)
    return BundleCheck([*faults, *artifacts], remarks)


def _check_artifacts(artifacts: Any, outputs: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    # Each output once and in order, so that no entry stands for another; as text, in which true and 1 differ.
    if type(artifacts) is not list or not all(type(each) is dict for each in artifacts):
        return [f"the artifacts are {short(artifacts)}, and not a list of objects"], []
    if content_id([{**each, "body": None} for each in artifacts]) != content_id(
        [{**output, "body": None} for output in outputs]
    ):
        return ["the artifacts are not the outputs of the envelope, one for one"], []
    faults, remarks = [], []
    for each in artifacts:
        name, body = each["name"], each.get("body", _NO_BODY)
        if body is None:
            remarks.append(f"{name} ({each['size']} bytes) is not in the bundle: only its hash is known")
            continue
        content = base64_content(body)
        if content is None:
            faults.append(f"the body of {name} is not base64")
        elif len(content) != each["size"] or hash_of(content) != each["hash"]:
            faults.append(f"the body of {name} is not what the proof says: it is {hash_of(content)}")
    return faults, remarks


def base64_of(content: bytes) -> str:
    """Return a content as base64."""
    return base64.b64encode(content).decode()


def base64_content(text: Any) -> bytes | None:
    """Return the content of a base64 text, or `None` unless it is the canonical encoding."""
    try:
        content = base64.b64decode(text, validate=True) if type(text) is str else None
    except ValueError:
        return None
    return content if content is not None and base64_of(content) == text else None
