"""Refs of jobs in a git repository: their names, and the names of the files in their commits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from vox_mesh.model.jobs.proof import BLAKE3

NAMESPACE: Final = "refs/gatos/jobs/"

MANIFEST_FILE: Final = "job.yaml"
CLAIM_FILE: Final = "claim.json"
PROOF_FILE: Final = "proof.json"
END_FILE: Final = "end.json"

_NAME: Final = re.compile(
    NAMESPACE + r"([0-9a-f]{64})/(?:(manifest|result|end)|claims/ed25519-([0-9a-f]{64}))", re.ASCII
)
_PLAIN_FILE: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}", re.ASCII)
_KEY_PREFIX: Final = "ed25519:"


class RefKind(StrEnum):
    """The kind of a ref: `end` is for a job that ended without a proof, such as an aborted one."""

    MANIFEST = "manifest"
    CLAIM = "claims"
    RESULT = "result"
    END = "end"


class JobRef(NamedTuple):
    """A ref of a job; `worker_id` is the public key of the worker, and only claims have one."""

    job_id: str
    kind: RefKind
    worker_id: str | None = None

    @property
    def name(self) -> str:
        """Return the name of the ref. No ref may have a colon, so the key is written with a hyphen."""
        worker = "" if self.worker_id is None else "/" + self.worker_id.replace(":", "-")
        return f"{NAMESPACE}{self.job_id}/{self.kind}{worker}"


def parse_ref(name: str) -> JobRef | None:
    """Return the ref of this name, or `None` if no ref of a job has such a name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    job_id, kind, key = match.groups()
    return JobRef(job_id, RefKind.CLAIM, _KEY_PREFIX + key) if kind is None else JobRef(job_id, RefKind(kind))


def artifact_paths(outputs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the file of each output of an envelope: by its name if that is plain and unique, or its hash."""
    names = [output["name"] for output in outputs]
    return [
        "artifacts/" + (name if _PLAIN_FILE.fullmatch(name) and names.count(name) == 1 else _digits(output))
        for name, output in zip(names, outputs, strict=True)
    ]


def _digits(output: dict[str, Any]) -> str:
    # With the prefix of hashes as a folder: no plain name has one.
    return "blake3/" + str(output["hash"]).removeprefix(BLAKE3)
